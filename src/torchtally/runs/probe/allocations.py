"""The observer that keeps allocations and frees, and nothing else of a run."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.memory.allocator import Block, OutOfMemoryError
from torchtally.memory.workspace import has_scratch
from torchtally.trace import Call, Role
from torchtally.tracer.placeholder_reads import PLACEHOLDER_LIMIT
from torchtally.tracer.recorder import Recorder
from torchtally.virtual.description import describe
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.facts import FALLING
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import VirtualStorage, virtual_of


class AllocationRecorder(Recorder):
    """A recorder whose trace has storages and steps, and no operators.

    Its storages are those of a whole recording, in the same order on the same clock.
    """

    def __init__(self, *, placeholder_limit: int = PLACEHOLDER_LIMIT) -> None:
        super().__init__(placeholder_limit=placeholder_limit)
        self.refused = ""
        """The first request that was refused: a limit that the script set for itself."""
        self.listeners: list[Callable[[Invocation, Sequence[Tensor]], None]] = []
        """Told of every operator on the device."""
        self.log: list[int] | None = None
        """While there is one: births of storages as number + 1, deaths as -(number + 1)."""
        self.values_read = 0
        """How often the script read a value that a virtual tensor does not have."""
        self.scratch_calls: list[Call] = []
        """Calls that may take scratch memory, each one once."""
        self.scratch: list[tuple[int, int]] = []
        """(tick, number of the call) of every such call. Its bytes depend on the chip."""
        self._held: list[int] = []
        """In the log's numbers: scratch memory of the operator at work."""
        self._scratch_numbers: dict[tuple[Any, ...], int] = {}

    def storage_born(self, storage: VirtualStorage) -> None:
        super().storage_born(storage)
        if self.log is not None and storage.home.device.type == "cuda":
            self.log.append(storage.number + 1)

    def storage_died(self, storage: VirtualStorage) -> None:
        super().storage_died(storage)
        if self.log is not None:
            self.log.append(-storage.number - 1)

    def workspace_used(self, device: torch.device, block: Block, name: str) -> None:
        super().workspace_used(device, block, name)
        if self.log is not None:
            self.log.append(self.storage_count)
            self._held.append(self.storage_count)

    def operator_ran(self, invocation: Invocation, outputs: Sequence[Tensor]) -> None:
        if invocation.operator.takes_workspace and has_scratch(invocation.operator.name):
            self._scratch_taken(invocation, outputs)
        if self._held:  # scratch goes all at once, before the operator's results are given back
            if self.log is not None:
                self.log += [-number for number in self._held]
            self._held.clear()
        self.by_hand.operator_ran(
            invocation, outputs, self.clock, is_in_module=self.modules.outer is not None
        )
        self.clock += 1
        for listener in self.listeners:
            listener(invocation, outputs)

    def _scratch_taken(self, invocation: Invocation, outputs: Sequence[Tensor]) -> None:
        virtual = virtual_of(outputs[0]) if outputs else None
        if virtual is None or not isinstance(virtual.home, DeviceMemory):
            return
        key = (invocation.signature, *(tensor.shape for tensor in outputs))
        number = self._scratch_numbers.get(key)
        if number is None:
            number = self._scratch_numbers[key] = len(self.scratch_calls)
            self.scratch_calls.append(describe(invocation, outputs))
        self.scratch.append((self.clock, number))

    def host_waited(self) -> None:
        """No memory depends on it."""

    def mark(self, tensor: Tensor, role: Role, name: str = "") -> None:
        """What a storage is for does not matter here."""

    def placeholder_given(self, operator: str, value: str) -> None:
        self.values_read += 1
        self.watch_loop(sys._getframe(1), value)

    def assumption_read(self, operator: str, assumption: str) -> None:
        if assumption is FALLING:
            self.watch_loop(sys._getframe(1), assumption)
        self.values_read += 1

    def memory_refused(
        self, device: torch.device, requested_bytes: int, error: OutOfMemoryError
    ) -> None:
        self.refused = self.refused or str(error)
        self.clock += 1

    @property
    def storage_count(self) -> int:
        return len(self.storages.births)

    def storages_from(self, first: int) -> list[tuple[Any, ...]]:
        """(device, requested bytes, birth, stream, spare bytes, death) since the first-th one."""
        return [
            (*born, self.storages.deaths.get(number))
            for number, born in enumerate(self.storages.births[first:], first)
        ]

    def are_dead(self, numbers: Sequence[int]) -> bool:
        return all(number in self.storages.deaths for number in numbers)
