"""The account of one run, and the conservation laws it is checked by."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import isclose
from typing import Any

import msgspec

from torchtally.errors import UsageError
from torchtally.ledger.groups import (
    Key,
    kind_of,
    library_line_of,
    line_of,
    module_of,
    once_per_site,
    op_of,
    own_line_of,
    phase_of,
    sums,
)
from torchtally.ledger.measured import late_ranks, measured_times
from torchtally.ledger.pricing import CallCost
from torchtally.ledger.steps import Course, Period
from torchtally.ledger.times import Times, Untold, predict_times
from torchtally.ledger.total import Coverage, Entry, Line, Path, Total, Untimed
from torchtally.memory import Memory
from torchtally.table.shown import Browsable
from torchtally.timing.roofline import Bound, Roofline
from torchtally.timing.slots import Slot
from torchtally.trace import Phase, Trace
from torchtally.work import Kind
from torchtally.work.convention import Convention


class ConservationError(AssertionError):
    """A ledger whose parts do not sum to its total. The message lists every law that is broken."""


@dataclass(frozen=True, slots=True)
class Ledger(Browsable):
    """The account of one run. Immutable; every view of it sum to `total`."""

    trace: Trace
    """With `Phase.EVALUATION` separated."""
    course: Course
    """The run's steps, and which are alike."""
    reported_period: Period
    """What the totals are of."""
    convention: Convention
    entries: tuple[Entry, ...]
    """Every operator of the run, in order."""
    reported: tuple[Entry, ...]
    """Those of the period that is reported: a step, unless another one was selected."""
    total: Total
    """Of the reported period, like all but `memory`."""
    coverage: Coverage
    memory: Memory
    """Of the whole run."""
    costs: tuple[CallCost, ...]
    """Of each of the trace's calls, by its number."""
    times: Times
    """Of each entry, by its number."""
    delegate: Line | None = None
    """The user's line that does nearly all of the step by a library's modules: `trainer.train()`.

    Lines are the model's then, here and in every view.
    """
    others: tuple["Ledger", ...] = ()
    """Of the other ranks that ran with this one, which are timed together with it."""

    def __repr__(self) -> str:
        took = "not timed" if self.step_s is None else f"{self.step_s:.6g} s"
        return (
            f"<Ledger of {self.trace.script!r} on {self.trace.chip}, {self.period}: "
            f"{self.total.count} ops, {self.total.flops} FLOPs, {took}>"
        )

    def with_predicted_times(self, roofline: Roofline) -> "Ledger":
        """The same ledger with the times of this chip: nothing else depends on the chip."""
        ranks = (self, *self.others)
        columns = predict_times(
            [Untold(rank.trace, rank.costs, rank.reported) for rank in ranks], roofline
        )
        own, *others = (rank.with_times(times) for rank, times in zip(ranks, columns, strict=True))
        return replace(own, others=tuple(others))

    def as_measured(self, roofline: Roofline | None) -> "Ledger":
        """The same ledger with the times that a profiler measured, held against this chip.

        Raises UsageError for a trace that no profiler recorded.
        """
        ranks = (self, *self.others)
        for rank in ranks:
            if rank.trace.measured is None:
                raise UsageError(f"{rank.trace.script}: simulated, so there are no measured times.")
        late = late_ranks([rank.trace for rank in ranks], [rank.costs for rank in ranks])
        own, *others = (
            rank.with_times(
                measured_times(rank.trace, rank.trace.measured, rank.costs, roofline, late_s)
            )
            for rank, late_s in zip(ranks, late, strict=True)
            if rank.trace.measured is not None
        )
        return replace(own, others=tuple(others))

    def with_times(self, times: Times) -> "Ledger":
        """The same ledger with these times, of its own trace."""
        network = [entry for entry in self.reported if entry.kind is Kind.COMMUNICATION]
        total = replace(
            self.total,
            seconds=times.seconds(self.reported),
            kernel_s=times.kernel_s(self.reported),
            network_s=times.kernel_s(network),
            exposed_s=times.exposed_s(network),
            predicted_s=times.predicted_s(self.reported),
        )
        return replace(self, times=times, total=total)

    def slot(self, entry: Entry) -> Slot:
        """The entry's part of the time. All zero in a ledger without a roofline."""
        slot = self.times.slots[entry.number]
        return slot if entry.share == 1 else slot.part(entry.share)

    def kernels(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """An entry for each operator that ran: a fused kernel as a whole, not by its parts."""
        for entry in entries:
            if entry.call.fused is None:
                yield entry
            elif entry.is_first:
                cost = self.costs[entry.op.call].cost
                yield msgspec.structs.replace(entry, cost=cost, operator=entry.call.name, share=1.0)

    @property
    def roofline(self) -> Roofline | None:
        """What predicts the times; None in a ledger without times."""
        return self.times.roofline

    @property
    def untimed(self) -> tuple[Untimed, ...]:
        """Most frequent first."""
        return self.times.untimed

    def has_time(self, entry: Entry) -> bool:
        """Whether the entry's seconds are known; else they are in no total."""
        return entry.kind is not Kind.UNCOUNTED and (
            self.slot(entry).kernel_s > 0
            or all(entry.call.name != untimed.op for untimed in self.untimed)
        )

    @property
    def step_s(self) -> float | None:
        """Seconds of the reported period, predicted or measured; None where neither is known."""
        return self.total.seconds if self.is_timed else None

    @property
    def is_timed(self) -> bool:
        return self.times.is_timed

    @property
    def knows_memory(self) -> bool:
        """False of a profiler's file without memory events."""
        return self.trace.measured is None or self.trace.measured.has_memory

    @property
    def is_measured(self) -> bool:
        """Times are a profiler's; a roofline, where there is one, is what they are held against."""
        return self.times.is_measured

    @property
    def period(self) -> str:
        """The period that the totals cover, as text."""
        return self.reported_period.name

    def sums(self, key: Callable[[Entry], Key]) -> dict[Key, Total]:
        """The reported period's totals, grouped, first seen first. They sum to `total`."""
        return sums(self.reported, self.times.slots, key, self.times.kernels_s)

    def by_line(self) -> dict[Line | None, Total]:
        """Totals by the innermost line of the user's own code; of the model's where one line
        delegates.
        """
        return self.sums(once_per_site(line_of))

    def by_own_line(self) -> dict[Line | None, Total]:
        """Totals by the innermost line of the user's own code."""
        return self.sums(once_per_site(own_line_of))

    def by_library_line(self) -> dict[Line | None, Total]:
        """Totals by the innermost line, of the user's code or a library's."""
        return self.sums(once_per_site(library_line_of))

    def by_module(self) -> dict[Path, Total]:
        """Totals by module, each one's own operators alone."""
        return self.sums(once_per_site(module_of))

    def by_op(self) -> dict[str, Total]:
        return self.sums(op_of)

    def by_kind(self) -> dict[Kind, Total]:
        return self.sums(kind_of)

    def by_phase(self) -> dict[Phase, Total]:
        return self.sums(phase_of)

    def by_bound(self) -> dict[Bound, Total]:
        """Totals by what limits an operator: compute, memory, network, overhead."""
        return self.sums(lambda entry: self.slot(entry).bound)

    def check(self) -> None:
        """Raise ConservationError unless every grouping sum to the total and memory adds up."""
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
    "own-line": Ledger.by_own_line,
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
            if not (
                isclose(parts, whole, rel_tol=1e-9, abs_tol=1e-12) if is_time else parts == whole
            ):
                yield f"{quantity.name} by {name} sum to {parts}, not to the total {whole}"


def _time_broken(ledger: Ledger) -> Iterator[str]:
    """No operator takes less time than its kernel, and no kernel a negative time.

    In a run that communicates, or that was measured, kernels run beside each other: a moment is the
    time of one of them.
    """
    is_alone = not ledger.is_measured and not any(
        entry.kind is Kind.COMMUNICATION for entry in ledger.entries
    )
    for entry in ledger.entries:
        slot = ledger.slot(entry)
        least_s = slot.kernel_s if is_alone else 0.0
        if slot.kernel_s < 0 or least_s > slot.seconds * (1 + 1e-9):
            name = entry.call.name
            yield f"{name} at {entry.op.clock} takes {slot.seconds} s, its kernel {slot.kernel_s} s"


def _coverage_broken(ledger: Ledger) -> Iterator[str]:
    coverage = ledger.coverage
    classified = coverage.counted + coverage.free + coverage.uncounted_ops
    if classified != ledger.total.count:
        yield f"{classified} operators are counted, free or uncounted, not all {ledger.total.count}"
    if ledger.total.bytes_saved > ledger.total.bytes_allocated:
        yield "more bytes are saved than were allocated"
