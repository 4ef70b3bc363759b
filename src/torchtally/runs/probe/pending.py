"""A call with a graph, from its forward until its backward: what is noted, what is compared."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchtally import torch_private as private
from torchtally.runs.probe.passes import Stretch
from torchtally.virtual.storage import VirtualStorage, virtual_of


@dataclass(frozen=True, slots=True)
class Backward:
    """How a backward pass meets a folded call. Compared before the pass."""

    entry: int
    """The index, among the results that are tensors, of the one whose gradient comes in."""
    gradients: tuple[bool, ...]
    """By parameter: it has one."""
    clears: int
    """How often autocast's cache was cleared since the call."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one call and its backward did. Equal for those that are alike."""

    operators: int
    sizes: tuple[int, ...]
    """Requested bytes of the n-th storage: those of the forward come first."""
    forward: tuple[int, ...]
    """The n-th storage was born: n + 1; it died: -(n + 1)."""
    spec: private.TreeSpec
    leaves: tuple[Any, ...]
    survivors: tuple[bool, ...]
    """By argument, then by result that is a tensor: its storage outlives the backward."""
    held: tuple[int, ...]
    """Arguments whose storages the graph holds until a moment of the backward, or may hold."""
    lent: tuple[int, ...]
    """Storages that autocast alone keeps, until its cache is cleared."""
    how: Backward
    backward: tuple[int, ...]
    """As `forward`. Storages from outside count from the end: the arguments, the gradient."""
    gradient_owners: int


@dataclass(slots=True)
class MicroBatchKind:
    """Calls with the same arguments, in the same state of module and torch."""

    last: MicroBatch | None = None
    alike: int = 0
    surprises: int = 0
    calls: int = 0
    folded: int = 0
    is_hopeless: bool = False


class Pending:
    """A call whose backward has not come yet."""

    def __init__(self, kind: MicroBatchKind, module: nn.Module, arguments: list[Tensor]) -> None:
        self.kind = kind
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.sequence = range(0)
        """Sequence numbers of the call's autograd nodes."""
        self.outputs: list[weakref.ref[Tensor]] = []
        self.output_storages: list[weakref.ref[VirtualStorage]] = []
        self.edges: list[tuple[int, int] | None] = []
        """By result: the sequence number of its autograd node, and which of its outputs it is."""
        self.arguments = list(map(reference_to, arguments))
        self.clears = 0
        self.is_done = False

    def call_returned(self, outputs: list[Tensor], first_sequence: int, clears: int) -> None:
        self.sequence = range(first_sequence, private.next_sequence_number())
        self.outputs = [weakref.ref(output) for output in outputs]
        self.output_storages = list(map(reference_to, outputs))
        self.edges = [
            None if output.grad_fn is None
            else (private.sequence_number(output.grad_fn), output.output_nr)
            for output in outputs
        ]  # fmt: skip
        self.clears = clears

    def meeting(self, entry: int, clears: int) -> Backward:
        return Backward(
            entry=entry,
            gradients=tuple(p.grad is not None for p in self.parameters),
            clears=clears - self.clears,
        )

    def has_hooks(self) -> bool:
        """On the results or the parameters: they might keep what the engine hands them."""
        tensors = [*(output() for output in self.outputs), *self.parameters]
        return any(tensor is not None and private.has_hooks(tensor) for tensor in tensors)


class Lesson(Pending):
    """A call that ran, and is watched until its backward has run."""

    def __init__(
        self, kind: MicroBatchKind, module: nn.Module, arguments: list[Tensor], stretch: Stretch
    ) -> None:
        super().__init__(kind, module, arguments)
        self.stretch = stretch
        self.results: tuple[private.TreeSpec, tuple[Any, ...]] | None = None
        self.forward_end = 0
        """Length of the log when the call returned."""
        self.forward_storages = 0
        self.cleared: list[tuple[int, int]] = []
        """Where in the log autocast's cache was cleared."""
        self.backward_start: tuple[int, int, int] | None = None
        """Length of the log, the number of the next storage, and holders of the gradient."""
        self.gradient_number = -1
        self.argument_numbers = [
            virtual.number for argument in arguments if (virtual := virtual_of(argument))
        ]


class Replay(Pending):
    """A call that was folded, with what its graph holds."""

    def __init__(
        self,
        kind: MicroBatchKind,
        module: nn.Module,
        arguments: list[Tensor],
        pattern: MicroBatch,
        alive: dict[int, VirtualStorage],
        misfolded: Callable[[str], None],
    ) -> None:
        super().__init__(kind, module, arguments)
        self.misfolded = misfolded
        self.pattern = pattern
        self.alive = alive
        self.holds: list[Any] = [
            argument.untyped_storage() if n in pattern.held else None
            for n, argument in enumerate(arguments)
        ]

    @property
    def survivors(self) -> tuple[bool, ...]:
        return tuple(
            reference() is not None for reference in (*self.arguments, *self.output_storages)
        )

    def __del__(self) -> None:
        """What the graph would hold without a backward is not known."""
        if not self.is_done:
            self.misfolded("a folded call got no backward pass")


def has_value(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual is None or virtual.value is not None


def gradients_of(pending: Pending) -> Iterator[Tensor]:
    return (p.grad for p in pending.parameters if p.grad is not None)


def shares_storages(tensors: list[Tensor]) -> bool:
    return len({id(virtual_of(tensor)) for tensor in tensors}) < len(tensors)


def reference_to(tensor: Tensor) -> weakref.ref[VirtualStorage]:
    virtual = virtual_of(tensor)
    assert virtual is not None
    return weakref.ref(virtual)
