"""What an operator costs, and what a group of them costs together: quantities that add."""

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import msgspec

from torchtally.trace import Call, Op, Site
from torchtally.work import Cost, Kind


class Line(NamedTuple):
    """A line of source code, by which operators are grouped."""

    file: str
    line: int
    text: str
    is_own: bool


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One operator and what it costs. When it runs is in the ledger's `times`.

    A kernel that a compiler fused of several has an entry for each.
    """

    number: int
    """Its operator's place in the trace. The parts of a fused kernel share one."""
    op: Op
    call: Call
    site: Site
    kind: Kind
    cost: Cost
    bytes_allocated: int
    """Bytes of the storages born at this op, as the allocator rounds them."""
    bytes_saved: int
    """Those of them that a forward op allocates and a backward op reads.

    What a checkpointed region recomputes in the backward pass is allocated, not saved: it does
    not have to be held from the forward pass on.
    """
    line: Line | None
    """That it is charged to: of the user's own code, or where `Ledger.delegate` is a line, of the
    model's.
    """
    operator: str
    """The call's name; of a part of a fused kernel, that of the operator fused."""
    share: float = 1.0
    """Of the operator's time; less than 1 for a part of a fused kernel."""
    part: int = 0
    """Its place among the parts of its fused kernel."""

    @property
    def is_first(self) -> bool:
        """Not one of a kernel's parts behind the first: kernels are counted by these."""
        return self.part == 0


@dataclass(frozen=True, slots=True)
class Total:
    """What a group of operators costs together: a quantity that adds."""

    count: int = 0
    """Operators."""
    flops_forward: int = 0
    flops_backward: int = 0
    """Without recomputation, which is counted apart."""
    flops_recompute: int = 0
    flops_optimizer: int = 0
    flops_evaluation: int = 0
    """Of forward work that no backward pass follows; 0 in the totals of a single step."""
    flops_matmul: int = 0
    """The part of all five in products, attention and convolutions."""
    bytes_read: int = 0
    bytes_written: int = 0
    network_bytes: int = 0
    bytes_allocated: int = 0
    bytes_saved: int = 0
    views: int = 0
    """Operators of the forward pass that made a view: same storage, nothing moved."""
    copies: int = 0
    """Operators of the forward pass that made a copy of a tensor: a cast, a contiguous one."""
    seconds: float = 0.0
    """Of the step's time: kernels, and the device idle waiting for them."""
    kernel_s: float = 0.0
    """The part of `seconds` in which the device runs kernels."""
    network_s: float = 0.0
    """How long collectives run, each by itself; most of it behind kernels that compute."""
    exposed_s: float = 0.0
    """The part of `seconds` in which collectives run and nothing computes."""
    predicted_s: float = 0.0
    """Of measured operators: what their kernels would take by the roofline, as far as it is known.
    0 where `seconds` themselves are predicted."""

    @property
    def flops(self) -> int:
        return (
            self.flops_forward
            + self.flops_backward
            + self.flops_recompute
            + self.flops_optimizer
            + self.flops_evaluation
        )

    @property
    def bytes(self) -> int:
        """Bytes moved to and from the device's memory."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Self) -> "Total":
        return Total(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(Total))
        )


class Path(NamedTuple):
    """A module: its path in the model and its class. Both empty: outside any module."""

    module: str
    module_class: str


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An operator that no rule counts: its FLOPs and bytes are in no total."""

    op: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many operators of the step are counted, free (views, metadata, sleeps) and neither."""

    counted: int
    free: int
    sleeps: int
    """Of the free ones, the script's own `time.sleep`."""
    uncounted: tuple[Uncounted, ...]
    """Most frequent first."""

    @property
    def uncounted_ops(self) -> int:
        return sum(uncounted.count for uncounted in self.uncounted)


@dataclass(frozen=True, slots=True)
class Untimed:
    """An operator whose time the roofline cannot predict: its time is in no total."""

    op: str
    count: int
    reason: str
