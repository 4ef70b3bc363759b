"""Smallest value from which a step is compute-bound, or has an MFU: the answer and the curve."""

from collections.abc import Iterator
from functools import partial

from torchtally.fit.threshold import STEP, StepPoint, ThresholdSearch
from torchtally.report.chart import chart_text
from torchtally.report.documents.threshold import threshold_document
from torchtally.report.report import Look, Report
from torchtally.report.terminal import prose, table_text
from torchtally.table import Chart, Column, Series, Table
from torchtally.units import Unit, format_fraction

COLUMNS = (
    Column("value", "value", Unit.COUNT),
    Column("step_s", "step", Unit.SECONDS),
    Column("samples_per_s", "samples/s", Unit.NUMBER),
    Column("mfu", "MFU", Unit.FRACTION),
    Column("compute_share", "compute-bound", Unit.FRACTION),
    Column("peak_reserved_bytes", "reserved", Unit.BYTES),
)


def threshold_report(search: ThresholdSearch, name: str, chip: str) -> Report:
    """The answer in a sentence, all values that were run, the curve."""
    curve, facts = _curve(search, name), tuple(_facts(search, name, chip))
    return Report(
        title=f"{name} on {chip}",
        facts=facts,
        tables=(("values", curve),),
        text=partial(_text, search, facts, curve),
        document=partial(threshold_document, search, name, chip),
    )


def _facts(search: ThresholdSearch, name: str, chip: str) -> Iterator[str]:
    goal = search.goal
    what = (
        f"at which the step's MFU on {chip} is {format_fraction(goal.mfu)}"
        if goal.mfu is not None
        else f"from which {_scope(search)} is compute-bound on {chip}"
    )
    if search.answer is not None:
        yield f"smallest {name} {what}: {search.answer}"
        shown = [value for value in (search.answer, search.below) if value is not None]
        yield "; ".join(f"at {value} {_measured(search, value)}" for value in shown) + "."
        return
    tried = search.below
    failed = search.failed
    if tried is None:
        assert failed is not None
        yield f"the script fails at the smallest {name}, {failed.value}: {failed.failure}"
        return
    yield f"no {name} up to {tried} {what}: there {_measured(search, tried)}."
    if failed is not None:
        yield f"{failed.value} fails: {failed.failure}"


def _scope(search: ThresholdSearch) -> str:
    scope = search.goal.scope
    return "the step" if scope == STEP else scope


def _measured(search: ThresholdSearch, value: int) -> str:
    point = search.points[value]
    if search.goal.mfu is not None:
        return "the MFU is " + ("unknown" if point.mfu is None else format_fraction(point.mfu))
    if point.compute_share is None:
        return "it takes no time"
    return f"{format_fraction(point.compute_share)} of its time is"


def _ended(search: ThresholdSearch) -> list[StepPoint]:
    return [point for _, point in sorted(search.points.items()) if not point.failure]


def _curve(search: ThresholdSearch, name: str) -> Table:
    rows = tuple(
        (point.value, point.step_s, point.samples_per_s, point.mfu, point.compute_share,
         point.peak_reserved_bytes)
        for point in _ended(search)
    )  # fmt: skip
    return Table(
        f"By {name}",
        COLUMNS,
        rows,
        note=f"compute-bound: share of the time of {_scope(search)} in kernels that wait for "
        "arithmetic, by the roofline of the chip.",
    )


def _text(search: ThresholdSearch, facts: tuple[str, ...], curve: Table, look: Look) -> str:
    parts = ["".join(prose(fact, look.width) for fact in facts)]
    parts.append(table_text(curve, width=look.width, is_coloured=look.is_coloured))
    is_mfu = search.goal.mfu is not None
    pairs = [
        (float(point.value), share)
        for point in _ended(search)
        if (share := point.mfu if is_mfu else point.compute_share) is not None
    ]
    if len(pairs) > 1:
        title = "MFU" if is_mfu else f"Share of {_scope(search)} that is compute-bound"
        series = (Series("o", tuple(pairs)),)
        parts.append(chart_text(Chart(title, "value", series, x_is_whole=True), width=look.width))
    return "\n".join(parts)
