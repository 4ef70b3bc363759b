"""What a stretch of a run does, as far as memory and torch can tell, and how to do it again.

Both kinds of folding (`folding`: evaluation passes, `micro_batches`: training ones) compare
stretches by these facts.
"""

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtally import torch_private as private
from torchtally.runs.probe.allocations import AllocationRecorder
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import SPECIAL, VirtualDispatch
from torchtally.virtual.invocation import META, Invocation
from torchtally.virtual.storage import VirtualStorage, virtual_of

PATIENCE = 2
"""Calls that must be alike before the next one is folded."""
RECHECK = 50
"""Every so many-th call runs anyway."""

aten = torch.ops.aten
BLIND = frozenset(
    [
        aten.add.Tensor, aten.copy_.default, aten.eq.Scalar, aten.ne.Scalar, aten.eq.Tensor,
        aten.ne.Tensor, aten.isnan.default, aten.isinf.default, aten.isposinf.default,
        aten.isneginf.default,
    ]
)  # fmt: skip
"""Operators with a handler of their own that need no values; the other ones may look."""

PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True, slots=True)
class FoldedTensor:
    """A tensor that a pass returned: the index of its storage among the pass's, and its layout."""

    storage: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    requires_grad: bool


@dataclass(slots=True)
class Stretch:
    """What ran while it was active. It logs births and deaths from its opening to its closing."""

    recorder: AllocationRecorder
    mode: VirtualDispatch
    log: list[int] = field(default_factory=list)
    """Births of storages as number + 1, deaths as -(number + 1)."""
    operators: int = 0
    """A hash of their signatures in order."""
    written: set[int] = field(default_factory=set)
    """Storages from before that were written to."""
    is_quiet: bool = True
    """No value was read, no host tensor touched, no random number drawn whose value is kept."""
    first: int = 0
    """The number of the first storage born in it."""
    looks: int = 0
    """Operators that may have read values."""
    _before: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.first = self.recorder.storage_count
        self.recorder.log = self.log

    @property
    def is_open(self) -> bool:
        """Another one that was opened since has taken the log."""
        return self.recorder.log is self.log

    def resume(self) -> None:
        self._before = self._state()
        self.recorder.listeners.append(self.operator_ran)

    def pause(self) -> None:
        self.recorder.listeners.remove(self.operator_ran)
        self.is_quiet = self.is_quiet and self._before == self._state()

    def close(self) -> None:
        if self.is_open:
            self.recorder.log = None

    def _state(self) -> tuple[Any, ...]:
        recorder = self.recorder
        numpy = sys.modules.get("numpy.random")
        return (
            recorder.values_read, recorder.host_operators, recorder.reads,
            [state.state.tolist() for state in self.mode.random], random.getstate(),
            numpy and (numpy.get_state()[1].tobytes(), *numpy.get_state()[2:]),
        )  # fmt: skip

    def operator_ran(self, call: Invocation, outputs: Sequence[Tensor]) -> None:
        self.operators = hash((self.operators, call.signature))
        if call.operator.is_mutating:
            numbers = [virtual.number for virtual in call.virtuals if virtual is not None]
            # of an in-place operator the first tensor is written; of others it might be any
            written = numbers[:1] if call.operator.is_inplace else numbers
            self.written.update(number for number in written if number < self.first)


def watch_readers(recorder: AllocationRecorder) -> None:
    """Count operators that may look at values. Once in a process, before the run."""

    def counting(handler: Callable[..., Any]) -> Callable[..., Any]:
        def run(mode: VirtualDispatch, call: Invocation) -> Any:
            recorder.reads += 1
            return handler(mode, call)

        return run

    for overload in SPECIAL.keys() - BLIND:
        SPECIAL[overload] = counting(SPECIAL[overload])


def argument_key(memory: DeviceMemory, arguments: Any) -> Any:
    """Equal for calls whose arguments and modes agree; None where they are not plain."""
    leaves, spec = private.tree_flatten(arguments)
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            virtual = virtual_of(leaf)
            if virtual is None or virtual.home is not memory:
                return None
            described.append(
                (leaf.shape, leaf.stride(), leaf.dtype, leaf.storage_offset(), leaf.requires_grad)
            )
        elif isinstance(leaf, PLAIN):
            described.append((type(leaf), leaf))
        else:
            return None
    state = (
        torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"),
        torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        torch.get_default_device(),
    )  # fmt: skip
    return spec, tuple(described), state


def results_of(
    result: Any, first: int
) -> tuple[private.TreeSpec, tuple[FoldedTensor | Any, ...]] | None:
    """The structure and the leaves of a result; None where it cannot be made without running.

    `first` is the number of the pass's first storage.
    """
    contents: list[Any] = []
    leaves, spec = private.tree_flatten(result)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            virtual = virtual_of(leaf)
            if virtual is None or virtual.number < first or virtual.value is not None:
                return None
            contents.append(
                FoldedTensor(virtual.number - first, leaf.shape, leaf.stride(), leaf.dtype,
                             int(leaf.storage_offset()), leaf.requires_grad)
            )  # fmt: skip
        elif isinstance(leaf, PLAIN):
            contents.append(leaf)
        else:
            return None
    return spec, tuple(contents)


def create(
    leaves: Iterable[Any], sizes: Sequence[int], alive: dict[int, VirtualStorage]
) -> list[Any]:
    """The leaves of a result, with new tensors on the storages."""
    storages: dict[int, torch.UntypedStorage] = {}
    created: list[Any] = []
    with private.without_dispatch_modes():
        for leaf in leaves:
            if not isinstance(leaf, FoldedTensor):
                created.append(leaf)
                continue
            storage = storages.get(leaf.storage)
            if storage is None:
                storage = torch.UntypedStorage(sizes[leaf.storage], device=META)
                storage.virtual = alive[leaf.storage]  # type: ignore[attr-defined]
                storages[leaf.storage] = storage
            tensor = torch.empty(0, dtype=leaf.dtype, device=META)
            tensor.set_(storage, leaf.offset, leaf.shape, leaf.stride)
            created.append(tensor)
    return created


def tensors_among(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in private.tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]


def attributes(module: nn.Module) -> list[Any] | None:
    """What all modules have, plain values as such and others by identity; None with hooks."""
    identities: list[Any] = []
    for each in module.modules():
        state = vars(each)
        if any(state.get(name) for name in private.MODULE_HOOKS):
            return None
        for value in state.values():
            if isinstance(value, dict):
                identities += map(id, value.values())
            elif isinstance(value, (list, set)):
                identities.append(len(value))
            identities.append(value if isinstance(value, PLAIN) else id(value))
    return identities
