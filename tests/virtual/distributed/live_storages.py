"""Bytes of the tensors that live, after each operator: in a real rank, and in a simulated one."""

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from torchtally.trace import Role, Trace


class LiveStorages(TorchDispatchMode):
    """Watches the storages of all that operators are given or return. What is small is left
    out: optimizers count their steps on the host.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        """By the storage's address: itself, and its size when it was last seen."""
        self._most_bytes = 0
        """No fewer than live now: sizes as last seen, also of what is gone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional" and "wait" not in str(func):
            for tensor in tree_iter(result):
                torch.ops._c10d_functional.wait_tensor(tensor)
        for value in tree_iter((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and not hasattr(value, "__tensor_flatten__"):
                self._see(value.untyped_storage())
            elif is_work_of_a_collective(func, value):
                dist.Work.unbox(value).wait()  # gloo's threads let go of tensors when they are done
        if self._most_bytes > self.peak_bytes:
            self.peak_bytes = max(self.peak_bytes, self._live_bytes())
        return result

    def _see(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if storage.device.type != "cpu" or size <= SMALL_BYTES:
            return
        _, before = self._live.get(key, (None, 0))
        if size != before:
            self._live[key] = StorageWeakRef(storage), size
            self._most_bytes += size

    def _live_bytes(self) -> int:
        """Of now: FSDP resizes storages to nothing, and back."""
        for key, (weak, _) in list(self._live.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            size = 0 if storage is None else storage.nbytes()
            if size > SMALL_BYTES:
                self._live[key] = weak, size
            else:
                del self._live[key]
        self._most_bytes = sum(size for _, size in self._live.values())
        return self._most_bytes


def is_work_of_a_collective(func: Any, value: Any) -> bool:
    """Of no message, which others may have to send first."""
    is_work = isinstance(value, torch.ScriptObject) and "Work" in str(value._type())
    return is_work and not func.name().startswith(("c10d::send", "c10d::recv"))


SMALL_BYTES = 16
"""Up to here: scalars, and the ranks of a mesh, which are on the host."""


def peak_of(trace: Trace) -> int:
    """Bytes as requested, of the storages on the device that outlive their operator."""
    change = [0] * (trace.end + 2)
    for storage in trace.storages:
        is_kept = storage.died is None or storage.died > storage.born + 1
        is_tensor = storage.role is not Role.WORKSPACE and storage.requested_bytes > SMALL_BYTES
        if is_kept and is_tensor:
            change[storage.born] += storage.requested_bytes
            if storage.died is not None:
                change[storage.died] -= storage.requested_bytes
    return max(accumulate(change))
