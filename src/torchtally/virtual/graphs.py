"""CUDA graphs: operators that are captured do not run; a replay runs them all, in one launch.

What a capture allocates comes from a private pool of the allocator, which keeps it for the graph's
replays and for other graphs that are captured with the same pool.
"""

import itertools
from typing import Any, ClassVar

import torch

from torchtally.memory.allocator import Block, PoolId
from torchtally.torch_private import releases
from torchtally.virtual.capture import Capture
from torchtally.virtual.cuda_calls import refusal
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.streams import DEFAULT_STREAM_ID, current_stream_number

_pools = itertools.count(1)

SEED = "random state of CUDA graphs"
SEED_BYTES = 8
"""Of a seed, and of an offset: a tensor each."""


def pool_handle() -> PoolId:
    """A new name of a memory pool, as `torch.cuda.graph_pool_handle`."""
    return (0, next(_pools))


class GraphSeed:
    """Seed and offset of a generator, on the device, where captured kernels read them."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        stream = DEFAULT_STREAM_ID if releases.HERE.seeds_each_graph else None
        self._blocks = [memory.take_workspace(SEED_BYTES, SEED, stream) for _ in range(2)]

    def drop(self) -> None:
        blocks: list[Block] = self._blocks
        while blocks:
            self._memory.drop_workspace(blocks.pop())


class CUDAGraph:
    """Stands for `torch.cuda.CUDAGraph`, which libraries name in annotations and derive from."""

    mode: ClassVar[VirtualDispatch | None] = None
    """The session's: one per process, set while it is active."""
    shared_random: ClassVar[dict[int, GraphSeed]] = {}
    """Of the GPUs by their numbers, on releases where all graphs share it."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._captured: Capture | None = None
        self._pool: PoolId | None = None
        self._memory: DeviceMemory | None = None
        """Of the GPU whose pool the graph uses."""
        self._random: GraphSeed | None = None

    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        mode = active_mode()
        mode.check_capture()
        self.reset()
        memory = self._memory = mode.gpus[mode.current_device]
        if releases.HERE.seeds_each_graph:
            self._random = GraphSeed(memory)
        elif mode.current_device not in self.shared_random:
            self.shared_random[mode.current_device] = GraphSeed(memory)
        self._pool = (next(_pools), 0) if pool is None else pool
        stream = current_stream_number()
        memory.begin_pool(self._pool, lambda each: each == stream)
        self._captured = mode.capture = Capture()

    def capture_end(self) -> None:
        """The operators of the capture have not run: what they wrote is unknown."""
        mode = active_mode()
        if self._captured is None or mode.capture is not self._captured:
            raise RuntimeError("capture_end: no capture of this graph is underway")
        mode.capture = None
        if self._memory is not None and self._pool is not None:
            self._memory.end_pool(self._pool)
        self._captured.forget_values()

    def replay(self) -> None:
        mode, captured = active_mode(), self._captured
        if captured is None or captured is mode.capture:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if mode.capture is not None:
            mode.capture.repeat(captured)
        else:
            captured.forget_values()
            if self._memory is not None:
                self._memory.pooled |= captured.numbers
            mode.observer.graph_replayed(captured.operators)

    def reset(self) -> None:
        """Its pool's memory may serve others again, once no other graph uses it."""
        self._captured = None
        if self._memory is not None and self._pool is not None:
            self._memory.release_pool(self._pool)
        if self._random is not None:
            self._random.drop()
        self._memory = self._random = None

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> PoolId:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
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
        StandIn(CUDAGraph, "shared_random", {}),
        # The class keeps a stream, which is the session's.
        StandIn(torch.cuda.graph, "default_capture_stream", None),
        *(StandIn(owner, name, value) for owner in owners for name, value in answers.items()),
    ]
