"""The interface of an observer of a virtual GPU, and one that ignores everything."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from torchtally.memory.allocator import Block, OutOfMemoryError
from torchtally.trace import FusedKernel
from torchtally.virtual.device_memory import MemoryObserver
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import VirtualStorage


class Observer(MemoryObserver, Protocol):
    """Notified of what runs on the virtual GPU. The tracer's recorder is one."""

    clock: int
    """How many operators ran on the device: the moment an event is recorded at."""

    def operator_ran(self, invocation: Invocation, outputs: Any) -> None: ...

    def operator_captured(self, invocation: Invocation, outputs: Any) -> Any:
        """A CUDA graph captures the operator, which does not run. Returns a record for replays."""

    def graph_replayed(self, records: list[Any]) -> None:
        """A graph runs all that it captured."""

    def compiled(self, graph: Any, node: int) -> None:
        """What follows was made by the compiler of a node of this graph (`LoweredGraph`); None:
        of nothing, the script runs by itself again.
        """

    def kernel_launched(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, torch.Tensor]]
    ) -> None:
        """A kernel that the compiler wrote runs on tensors, by the names of its arguments."""

    def kernel_captured(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, torch.Tensor]]
    ) -> Any:
        """A CUDA graph captures such a kernel. Returns a record for replays."""

    def host_operator_ran(self) -> None: ...

    def stream_waited(self, stream: int, other: int, until: int) -> None:
        """Told that from now on a stream waits for what another was given before a tick."""

    def collectives_coalesced(self, first_tick: int) -> None:
        """All since a tick were issued together."""

    def placeholder_given(self, operator: str, value: str) -> None: ...

    def passing_answer(self, given: Any) -> Any:
        """What to give in place of a placeholder, for an assertion that reads it to pass; None:
        the placeholder.
        """

    def assumption_read(self, operator: str, assumption: str) -> None: ...

    def note(self, text: str) -> None: ...

    def file_saved(self, file: Any, placeholder_bytes: int) -> None:
        """A path or an open file has virtual tensors now, which a real run would give so many
        bytes.
        """


class NullObserver:
    """Counts operators and ignores everything else."""

    def __init__(self) -> None:
        self.clock = 0

    def operator_ran(self, invocation: Invocation, outputs: Any) -> None:
        self.clock += 1

    def operator_captured(self, invocation: Invocation, outputs: Any) -> None: ...

    def graph_replayed(self, records: list[Any]) -> None:
        self.clock += len(records)

    def compiled(self, graph: Any, node: int) -> None: ...

    def kernel_launched(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, torch.Tensor]]
    ) -> None:
        self.clock += 1

    def kernel_captured(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, torch.Tensor]]
    ) -> None: ...

    def storage_born(self, storage: VirtualStorage) -> None: ...
    def storage_died(self, storage: VirtualStorage) -> None: ...
    def workspace_taken(self, device: torch.device, block: Block, name: str) -> None: ...
    def workspace_dropped(self, block: Block) -> None: ...
    def workspace_used(self, device: torch.device, block: Block, name: str) -> None: ...
    def reserved_changed(self, device: torch.device, reserved_bytes: int) -> None: ...
    def cache_emptied(self, device: torch.device) -> None: ...
    def memory_refused(
        self, device: torch.device, requested_bytes: int, error: OutOfMemoryError
    ) -> None: ...
    def host_waited(self) -> None: ...
    def host_operator_ran(self) -> None: ...
    def stream_waited(self, stream: int, other: int, until: int) -> None: ...
    def collectives_coalesced(self, first_tick: int) -> None: ...
    def placeholder_given(self, operator: str, value: str) -> None: ...
    def passing_answer(self, given: Any) -> Any: ...
    def assumption_read(self, operator: str, assumption: str) -> None: ...
    def note(self, text: str) -> None: ...
    def file_saved(self, file: Any, placeholder_bytes: int) -> None: ...
