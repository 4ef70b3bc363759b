"""The account of one run, and the laws that hold in it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import isclose
from typing import Any

from torchtally.ledger.groups import (
    Key,
    bound_of,
    kind_of,
    library_line_of,
    line_of,
    module_of,
    once_per_site,
    op_of,
    phase_of,
    sums,
)
from torchtally.ledger.pricing import Priced
from torchtally.ledger.total import Coverage, Entry, Line, Path, Total, Untimed
from torchtally.memory import Memory
from torchtally.timing.roofline import Bound, Roofline
from torchtally.trace import Phase, Trace
from torchtally.work import Kind
from torchtally.work.convention import Attention


class ConservationError(AssertionError):
    """A ledger whose parts do not sum to its total. The message lists every law that is broken."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of one run. Immutable; every view of it sums to `total`."""

    trace: Trace
    attention: Attention
    entries: tuple[Entry, ...]
    """Every operator of the run, in order."""
    steady: tuple[Entry, ...]
    """Those of the steady-state step."""
    total: Total
    """Of the steady-state step."""
    coverage: Coverage
    """Of the steady-state step."""
    memory: Memory
    """Of the whole run."""
    roofline: Roofline | None = None
    """What the times are predicted by; None: there are none."""
    untimed: tuple[Untimed, ...] = ()
    """Of the steady-state step, most frequent first."""
    prices: Mapping[int, Priced] = field(default_factory=dict, repr=False, compare=False)
    """What each distinct call costs, by its identity."""

    @property
    def step_s(self) -> float | None:
        """Predicted seconds of the steady-state step; None without a roofline."""
        return None if self.roofline is None else self.total.seconds

    @property
    def period(self) -> str:
        """What the totals are totals of, in words."""
        steps = len(self.trace.step_ends)
        if not steps:
            return "the whole run (no training step was completed)"
        return f"steady-state step {steps}" if steps > 1 else "step 1 (with all before it)"

    def sums(self, key: Callable[[Entry], Key]) -> dict[Key, Total]:
        """The steady-state step's totals, grouped, first seen first. They sum to `total`."""
        return sums(self.steady, key)

    def by_line(self) -> dict[Line | None, Total]:
        """By the innermost line of the user's own code."""
        return self.sums(once_per_site(line_of))

    def by_library_line(self) -> dict[Line | None, Total]:
        """By the innermost line, whoever wrote it."""
        return self.sums(once_per_site(library_line_of))

    def by_module(self) -> dict[Path, Total]:
        """By module, each one's own operators alone."""
        return self.sums(once_per_site(module_of))

    def by_op(self) -> dict[str, Total]:
        return self.sums(op_of)

    def by_kind(self) -> dict[Kind, Total]:
        return self.sums(kind_of)

    def by_phase(self) -> dict[Phase, Total]:
        return self.sums(phase_of)

    def by_bound(self) -> dict[Bound, Total]:
        """By what limits an operator: compute, memory, network, overhead."""
        return self.sums(bound_of)

    def check(self) -> None:
        """Raise ConservationError unless every grouping sums to the total and memory adds up."""
        broken = [
            *_sums_broken(self),
            *_coverage_broken(self),
            *_time_broken(self),
            *self.memory.laws_broken(),
        ]
        if broken:
            raise ConservationError("\n".join(broken))


GROUPINGS: dict[str, Callable[[Ledger], Mapping[Any, Total]]] = {
    "line": Ledger.by_line,
    "library-line": Ledger.by_library_line,
    "module": Ledger.by_module,
    "op": Ledger.by_op,
    "kind": Ledger.by_kind,
    "phase": Ledger.by_phase,
    "bound": Ledger.by_bound,
}
"""Every way a view groups the entries of a step."""


def _sums_broken(ledger: Ledger) -> Iterator[str]:
    for name, grouped in GROUPINGS.items():
        total = sum(grouped(ledger).values(), start=Total())
        for quantity in fields(Total):
            parts, whole = getattr(total, quantity.name), getattr(ledger.total, quantity.name)
            is_time = isinstance(whole, float)
            if not (isclose(parts, whole, rel_tol=1e-9, abs_tol=1e-12) if is_time
                    else parts == whole):  # fmt: skip
                yield f"{quantity.name} by {name} sum to {parts}, not to the total {whole}"


def _time_broken(ledger: Ledger) -> Iterator[str]:
    """No operator takes less than its kernel, and none less than nothing."""
    for entry in ledger.entries:
        slot = entry.slot
        if not 0 <= slot.kernel_s <= slot.seconds * (1 + 1e-9):
            name = entry.op.call.name
            yield f"{name} at {entry.op.clock} takes {slot.seconds} s, its kernel {slot.kernel_s} s"


def _coverage_broken(ledger: Ledger) -> Iterator[str]:
    coverage = ledger.coverage
    classified = coverage.counted + coverage.free + coverage.uncounted_ops
    if classified != ledger.total.count:
        yield f"{classified} operators are counted, free or uncounted, not all {ledger.total.count}"
    if ledger.total.bytes_saved > ledger.total.bytes_allocated:
        yield "more bytes are saved than were allocated"
