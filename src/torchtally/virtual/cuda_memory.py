"""`torch.cuda.memory` answered from the allocator's model while the script runs.

What torch builds in Python (`memory_stats`, `memory_summary`, `memory_snapshot`) stays torch's own:
the functions below it, which ask the device, answer instead.
"""

import pickle
from collections.abc import Callable
from typing import Any

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.memory.allocator import AllocatorSettings, Block
from torchtally.memory.allocator.snapshot import SNAPSHOT_PROTOCOL
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.memory_history import MemoryHistory, snapshot
from torchtally.virtual.stand_ins import StandIn


class CudaMemory:
    """The memory functions of one session. `index` turns a device as users give it to a number."""

    def __init__(self, mode: VirtualDispatch, chip: Chip, index: Callable[[Any], int]) -> None:
        self.mode = mode
        self.chip = chip
        self.index = index
        self.histories = [MemoryHistory(memory) for memory in mode.gpus]
        self._raw: dict[int, tuple[DeviceMemory, Block]] = {}
        """Blocks handed out as bare addresses."""

    def of(self, device: Any = None) -> DeviceMemory:
        return self.mode.gpus[self.index(device)]

    def allocated_bytes(self, device: Any = None) -> int:
        return self.of(device).allocated_bytes

    def peak_allocated_bytes(self, device: Any = None) -> int:
        return self.of(device).peak_allocated_bytes

    def reserved_bytes(self, device: Any = None) -> int:
        return self.of(device).reserved_bytes

    def peak_reserved_bytes(self, device: Any = None) -> int:
        return self.of(device).peak_reserved_bytes

    def reset_peaks(self, device: Any = None) -> None:
        self.of(device).allocator.statistics.reset_peaks()

    def reset_accumulated(self, device: Any = None) -> None:
        self.of(device).allocator.statistics.reset_accumulated()

    def nested_stats(self, device: Any = None) -> dict[str, Any]:
        allocator = self.of(device).allocator
        return allocator.statistics.as_nested_dict(allocator.settings.max_split_bytes)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes, as cudaMemGetInfo: the CUDA context is no longer free."""
        memory = self.of(device)
        total = self.chip.total_memory_bytes
        return min(memory.allocator.free_bytes, max(0, total - memory.reserved_bytes)), total

    def empty_cache(self) -> None:
        for memory in self.mode.gpus:
            memory.empty_cache()

    def clear_blas(self) -> None:
        for memory in self.mode.gpus:
            memory.clear_libraries()

    def synchronize(self, device: Any = None) -> None:
        self.mode.check_capture()
        self.of(device).synchronize()

    def set_fraction(self, fraction: float, device: Any = None) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self.of(device).allocator.fraction = fraction

    def fraction(self, device: Any = None) -> float:
        fraction = self.of(device).allocator.fraction
        return 1.0 if fraction is None else fraction

    def set_settings(self, text: str) -> None:
        for memory in self.mode.gpus:
            memory.allocator.settings = AllocatorSettings.parse(text)

    # Blocks without a tensor.

    def raw_allocate(self, size: int, stream: int | None = None) -> int:
        memory = self.of(None)
        block = memory.take_workspace(size, "caching_allocator_alloc", stream)
        self._raw[block.address] = (memory, block)
        return block.address

    def raw_delete(self, address: int) -> None:
        """Frees a block handed out so, or one that a graph's pool has without a tensor."""
        if address in self._raw:
            memory, block = self._raw.pop(address)
            memory.drop_workspace(block)
        else:
            self.of(None).free_address(address)

    # Snapshots.

    def snapshot(self, pool: Any = None) -> dict[str, Any]:
        return snapshot(self.histories)

    def dump_snapshot(self, filename: str = "dump_snapshot.pickle", **options: Any) -> None:
        """Writes a snapshot as torch does, in a protocol every viewer reads, whatever Python's
        default is.
        """
        contents = private.memory_snapshot(**options)
        with open(filename, "wb") as file:
            pickle.dump(contents, file, protocol=SNAPSHOT_PROTOCOL)

    def record_history(self, *args: Any, **kwargs: Any) -> None:
        for history in self.histories:
            history.record(*args, **kwargs)

    def record_history_legacy(self, enabled: bool, *args: Any, **kwargs: Any) -> None:
        self.record_history("all" if enabled else None)

    def set_metadata(self, metadata: str) -> None:
        for history in self.histories:
            history.metadata = metadata

    # The tables.

    def answers(self) -> dict[str, Any]:
        """Names of `torch.cuda`."""
        return {
            **self.common_answers(),
            "memory_cached": self.reserved_bytes,
            "max_memory_cached": self.peak_reserved_bytes,
            "reset_max_memory_allocated": self.reset_peaks,
            "reset_max_memory_cached": self.reset_peaks,
            "mem_get_info": self.mem_get_info,
            "set_per_process_memory_fraction": self.set_fraction,
            "get_per_process_memory_fraction": self.fraction,
        }

    def common_answers(self) -> dict[str, Any]:
        """Names that `torch.cuda` and `torch.accelerator` share."""
        return {
            "synchronize": self.synchronize,
            "empty_cache": self.empty_cache,
            "memory_allocated": self.allocated_bytes,
            "max_memory_allocated": self.peak_allocated_bytes,
            "memory_reserved": self.reserved_bytes,
            "max_memory_reserved": self.peak_reserved_bytes,
            "reset_peak_memory_stats": self.reset_peaks,
            "reset_accumulated_memory_stats": self.reset_accumulated,
        }

    def stand_ins(self) -> list[StandIn]:
        """What torch's Python asks of its C++."""
        answers: dict[str, Any] = {
            "clear_blas": self.clear_blas,
            "nested_stats": self.nested_stats,
            "snapshot": self.snapshot,
            "record_history": self.record_history,
            "record_history_legacy": self.record_history_legacy,
            "traceback": self.traceback,
            "set_metadata": self.set_metadata,
            "get_metadata": lambda: self.histories[0].metadata,
            "raw_allocate": self.raw_allocate,
            "raw_delete": self.raw_delete,
            "set_settings": self.set_settings,
            "set_accelerator_settings": self.set_settings,
            "is_initialized": lambda: True,
            "accelerator_stats": self.nested_stats,
        }
        return [
            *(StandIn(*private.MEMORY_CALLS[name], answer) for name, answer in answers.items()),
            StandIn(*private.DUMP_SNAPSHOT, self.dump_snapshot),
        ]

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        tracebacks = (history.traceback(address) for history in self.histories)
        return next((traceback for traceback in tracebacks if traceback is not None), None)
