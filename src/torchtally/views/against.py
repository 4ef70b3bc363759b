"""A measured step beside its prediction: where the time is lost, line by line.

Every second of the difference has a row: what kernels take beyond their prediction, what the device
idles beyond it, collectives that nothing hides, and operators that only one of the two ran. The
rows sum to the measured step less the predicted one.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import fsum
from statistics import median
from typing import NamedTuple

from torchtally.ledger import Entry, Ledger, Line
from torchtally.ledger.joining import Joined
from torchtally.table import Cell, Column, Table
from torchtally.timing.roofline import Bound
from torchtally.units import Unit
from torchtally.views.columns import part_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.real_run import idle_s
from torchtally.work import Kind


class Cause(StrEnum):
    """Why a measured step takes longer, or less, than predicted."""

    KERNEL = "kernels slower"
    FASTER = "kernels faster"
    HOST = "device waits for the host"
    LESS_WAITING = "device waits less"
    NETWORK = "communication exposed"
    ONLY_REAL = "only in the real run"
    ONLY_PREDICTED = "only in the prediction"


class Difference(NamedTuple):
    cause: Cause
    seconds: float
    """Measured less predicted."""
    entry: Entry
    """The measured operator; of one that only the prediction has, that."""


def own_and_idle(ledger: Ledger, entry: Entry) -> tuple[float, float]:
    """(what is its own of an operator's part of the step, the device's idle time before it)."""
    before_s = idle_s(ledger, entry)
    return ledger.slot(entry).seconds - before_s, before_s


def differences(real: Ledger, predicted: Ledger, join: Joined) -> Iterator[Difference]:
    """All of them: they sum to the difference of both periods."""
    for ours, theirs in join.pairs:
        own_s, before_s = own_and_idle(real, ours)
        own_predicted_s, before_predicted_s = own_and_idle(predicted, theirs)
        change_s = own_s - own_predicted_s
        is_network = ours.kind is Kind.COMMUNICATION
        slower = Cause.NETWORK if is_network else Cause.KERNEL if change_s > 0 else Cause.FASTER
        yield Difference(slower, change_s, ours)
        yield waiting(before_s - before_predicted_s, ours)
    sides = (
        (real, 1.0, [pair[0] for pair in join.pairs], join.only_real, Cause.ONLY_REAL),
        (
            predicted,
            -1.0,
            [pair[1] for pair in join.pairs],
            join.only_predicted,
            Cause.ONLY_PREDICTED,
        ),
    )
    for ledger, sign, paired, alone, cause in sides:
        in_pairs = {entry.number for entry in paired}
        by_itself = {entry.number for entry in alone}
        for entry in ledger.kernels(ledger.reported):
            if entry.number in in_pairs:
                continue
            seconds = sign * fsum(own_and_idle(ledger, entry))
            is_alone = entry.number in by_itself
            yield Difference(cause, seconds, entry) if is_alone else waiting(seconds, entry)


def waiting(seconds: float, entry: Entry) -> Difference:
    return Difference(Cause.HOST if seconds > 0 else Cause.LESS_WAITING, seconds, entry)


def lost_time(real: Ledger, predicted: Ledger, join: Joined) -> Table:
    """Table by cause, most lost time first. Sums to what the real step takes beyond the
    prediction.
    """
    groups: dict[Cause, list[Difference]] = defaultdict(list)
    for difference in differences(real, predicted, join):
        if difference.seconds:
            groups[difference.cause].append(difference)
    root = root_of(difference.entry.line for group in groups.values() for difference in group)
    rows: list[tuple[Cell, ...]] = []
    for cause, group in groups.items():
        by_line: dict[Line | None, float] = defaultdict(float)
        for difference in group:
            by_line[difference.entry.line] += difference.seconds
        line = max(by_line, key=lambda place: abs(by_line[place]))
        seconds = fsum(difference.seconds for difference in group)
        rows.append(
            (seconds, part_of(seconds, real.total.seconds), len(group), str(cause),
             by_line[line], *line_texts(line, root))
        )  # fmt: skip
    rows.sort(key=lambda row: -float(row[0] or 0))
    whole = fsum(float(row[0] or 0) for row in rows)
    return Table(
        title="Where the real step differs from the prediction",
        columns=(
            Column("lost_s", "lost", Unit.SECONDS),
            Column("seconds_share", "of time", Unit.FRACTION, rank=1),
            Column("count", "ops", Unit.COUNT, rank=2),
            Column("cause", "cause", Unit.TEXT),
            Column("line_s", "at a line", Unit.SECONDS, rank=3),
            *TEXTS,
        ),
        rows=tuple(rows),
        totals=(whole, part_of(whole, real.total.seconds), sum(map(len, groups.values())),
                None, None, None, None),
    )  # fmt: skip


def lines_against(real: Ledger, predicted: Ledger) -> Table:
    """Measured and predicted seconds of every line; most lost time first."""
    ours, theirs = real.by_line(), predicted.by_line()
    places = list(dict.fromkeys([*ours, *theirs]))
    root = root_of(places)
    rows: list[tuple[Cell, ...]] = []
    for line in places:
        measured_s = ours[line].seconds if line in ours else 0.0
        predicted_s = theirs[line].seconds if line in theirs else 0.0
        if measured_s or predicted_s:
            rows.append(
                (measured_s - predicted_s, measured_s, predicted_s, *line_texts(line, root))
            )
    rows.sort(key=lambda row: -float(row[0] or 0))
    return Table(
        title="By line of your code, measured and predicted",
        columns=(
            Column("lost_s", "lost", Unit.SECONDS),
            Column("measured_s", "measured", Unit.SECONDS),
            Column("predicted_s", "predicted", Unit.SECONDS),
            *TEXTS,
        ),
        rows=tuple(rows),
        totals=(
            real.total.seconds - predicted.total.seconds,
            real.total.seconds,
            predicted.total.seconds,
            None,
            None,
        ),
    )


def unmatched_operators(join: Joined, real: Ledger, predicted: Ledger) -> Table:
    """Operators that ran in only one of the two: a fallback, an extra cast, a graph break."""
    groups: dict[tuple[Cause, str, Line | None], list[float]] = defaultdict(list)
    for ledger, entries, cause in (
        (real, join.only_real, Cause.ONLY_REAL),
        (predicted, join.only_predicted, Cause.ONLY_PREDICTED),
    ):
        for entry in entries:
            groups[cause, entry.call.name, entry.line].append(ledger.slot(entry).kernel_s)
    root = root_of(line for _, _, line in groups)
    rows: list[tuple[Cell, ...]] = [
        (fsum(seconds), len(seconds), str(cause), name, *line_texts(line, root))
        for (cause, name, line), seconds in groups.items()
    ]
    rows.sort(key=lambda row: -float(row[0] or 0))
    return Table(
        title="Operators that ran in only one of the two",
        columns=(
            Column("kernel_s", "kernels", Unit.SECONDS),
            Column("count", "ops", Unit.COUNT),
            Column("cause", "", Unit.TEXT),
            Column("operator", "operator", Unit.TEXT),
            *TEXTS,
        ),
        rows=tuple(rows),
        totals=(fsum(float(row[0] or 0) for row in rows),
                sum(map(len, groups.values())), None, None, None, None) if rows else (),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelRatios:
    """Measured over predicted seconds of kernels, the median of joined operators."""

    compute: float | None
    """Of those that arithmetic binds; None where there are too few."""
    memory: float | None

    @property
    def is_clock_down(self) -> bool:
        """Arithmetic is slower than predicted and memory is not: a lower clock of the cores."""
        if self.compute is None or self.memory is None:
            return False
        return self.compute > LOW_CLOCK and self.memory < (1 + self.compute) / 2


LOW_CLOCK = 1.12
FEWEST = 8


def kernel_ratios(real: Ledger, predicted: Ledger, join: Joined) -> KernelRatios:
    ratios: dict[Bound, list[float]] = defaultdict(list)
    for ours, theirs in join.pairs:
        measured, model = real.slot(ours), predicted.slot(theirs)
        if measured.kernel_s > 20e-6 and model.kernel_s > 0:
            ratios[model.bound].append(measured.kernel_s / model.kernel_s)

    def middle(bound: Bound) -> float | None:
        return median(ratios[bound]) if len(ratios[bound]) >= FEWEST else None

    return KernelRatios(middle(Bound.COMPUTE), middle(Bound.MEMORY))
