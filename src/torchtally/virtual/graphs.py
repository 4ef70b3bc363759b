"""CUDA graphs: operators that are captured do not run; a replay runs them all, in one launch.

Known limitation: a graph's private memory pool is not kept apart. What it reserves stays reserved,
but other tensors may use it while the graph does not.
"""

import itertools
from typing import Any, ClassVar

import torch

from torchtally.virtual.capture import Capture
from torchtally.virtual.cuda_calls import refusal
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn

PoolHandle = tuple[int, int]

_pools = itertools.count(1)


def pool_handle() -> PoolHandle:
    """A new name of a memory pool, as `torch.cuda.graph_pool_handle`."""
    return (0, next(_pools))


class CUDAGraph:
    """Stands for `torch.cuda.CUDAGraph`, which libraries name in annotations and derive from."""

    mode: ClassVar[VirtualDispatch | None] = None
    """The session's: one per process, set while it is active."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._captured: Capture | None = None
        self._pool = pool_handle()

    def capture_begin(
        self,
        pool: PoolHandle | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        mode = active_mode()
        mode.check_capture()
        self._pool = self._pool if pool is None else pool
        self._captured = mode.capture = Capture()

    def capture_end(self) -> None:
        """The operators of the capture have not run: what they wrote is unknown."""
        mode = active_mode()
        if self._captured is None or mode.capture is not self._captured:
            raise RuntimeError("capture_end: no capture of this graph is underway")
        mode.capture = None
        self._captured.forget_values()

    def replay(self) -> None:
        mode, captured = active_mode(), self._captured
        if captured is None or captured is mode.capture:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if mode.capture is not None:
            mode.capture.repeat(captured)
        else:
            captured.forget_values()
            mode.observer.graph_replayed(captured.operators)

    def reset(self) -> None:
        self._captured = None

    def pool(self) -> PoolHandle:
        return self._pool

    def instantiate(self) -> None: ...
    def enable_debug_mode(self) -> None: ...
    def debug_dump(self, debug_path: str) -> None: ...
    def register_generator_state(self, generator: Any) -> None: ...

    raw_cuda_graph = refusal("torch.cuda.CUDAGraph.raw_cuda_graph")
    raw_cuda_graph_exec = refusal("torch.cuda.CUDAGraph.raw_cuda_graph_exec")
    get_graph_data = refusal("torch.cuda.CUDAGraph.get_graph_data")


def active_mode() -> VirtualDispatch:
    assert CUDAGraph.mode is not None, "the class is in torch only while there is a session"
    return CUDAGraph.mode


def stand_ins(mode: VirtualDispatch) -> list[StandIn]:
    answers: dict[str, Any] = {
        "CUDAGraph": CUDAGraph,
        "graph_pool_handle": pool_handle,
        "is_current_stream_capturing": lambda: mode.capture is not None,
    }
    owners = (torch.cuda, torch.cuda.graphs)
    return [
        StandIn(CUDAGraph, "mode", mode),
        # The class keeps a stream, which is the session's.
        StandIn(torch.cuda.graph, "default_capture_stream", None),
        *(StandIn(owner, name, value) for owner in owners for name, value in answers.items()),
    ]
