"""The five numbers below a verdict: peak memory, step, rate, MFU and cost, each with what it is
of. On a page for a terminal they are a table, elsewhere sentences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from torchtally.ledger import Uncounted
from torchtally.ledger.steps import Period
from torchtally.report.grid import GAP, INDENT, wrap
from torchtally.report.plain import cut_left
from torchtally.units import (
    format_bytes,
    format_flop_per_s,
    format_fraction,
    format_rate,
    format_seconds,
    format_usd,
    roughly,
)
from torchtally.views.lines import short_path
from torchtally.views.step_time import StepTime
from torchtally.views.summary import Summary, Verdict
from torchtally.views.throughput import Batch, Throughput
from torchtally.views.time_range import TimeRange
from torchtally.views.utilisation import Utilisation

NAME_WIDTH = 48
MOST_LISTED = 3
"""Of operators whose FLOPs a figure lacks."""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number with its name and what it is of."""

    name: str
    value: str
    remark: str = ""

    @property
    def sentence(self) -> str:
        """The figure in a sentence."""
        name = self.name[0].upper() + self.name[1:]
        comma = "" if self.remark.startswith(("of ", "or ", "for ", "(")) else ","
        return f"{name}: {self.value}{f'{comma} {self.remark}' if self.remark else ''}."


def figure_lines(figures: Sequence[KeyFigure], width: int) -> Iterator[Text]:
    """The figures as a table: names, values below each other, remarks wrapped beside them."""
    names = max((len(figure.name) for figure in figures), default=0)
    values = max((len(figure.value) for figure in figures), default=0)
    indent = " " * (len(INDENT) + names + len(GAP) + values + len(GAP))
    for figure in figures:
        head = f"{INDENT}{figure.name:{names}}{GAP}{figure.value:>{values}}"
        first, *others = wrap(figure.remark, width, indent) or [""]
        yield Text.assemble((head, "bold"), GAP if first else "", first.strip())
        yield from map(Text, others)


def key_figures(summary: Summary) -> Iterator[KeyFigure]:
    """Those of the five that are known of a run."""
    if summary.verdict.device:
        yield memory_figure(summary.verdict)
    time = summary.time
    if time is None:
        return
    yield KeyFigure(period_name(summary.period), format_seconds(time.step_s), _trust(time))
    if summary.generation is None or summary.generation.is_trained_on:
        if time.throughput is not None:
            yield _rate(time.throughput, summary.own_root)
        utilisation = time.utilisation
        if utilisation is not None and utilisation.fraction is not None:
            is_of_many = summary.world.size > 1
            yield _mfu(time, utilisation, summary.coverage.uncounted, is_of_many=is_of_many)
    if not time.is_host:
        yield from _cost(summary)


def memory_figure(outcome: Verdict) -> KeyFigure:
    """Peak memory, of the chip's."""
    reserved, allocated = map(format_bytes, (outcome.reserved_bytes, outcome.peak_bytes))
    capacity = outcome.capacity_bytes
    has = "an unknown memory" if capacity is None else format_bytes(capacity)
    if outcome.is_open:
        remark = f"or more, of {has}; it stopped with {reserved} reserved, {allocated} allocated"
        return KeyFigure("peak memory", format_bytes(outcome.needed_bytes), remark)
    larger = " on a larger device" if outcome.claim == "does not fit" else ""
    return KeyFigure("peak memory", reserved, f"of {has}, reserved{larger}; {allocated} allocated")


def period_name(period: Period) -> str:
    """What a time is of."""
    if period.generation is not None:
        return period.name.removeprefix("the ")
    if period.step is None:
        return period.name if period.first else "whole run"
    return "step 1, with all before it" if period.step.number == 1 else "step"


def _trust(step_time: StepTime) -> str:
    """What the time rests on, and the times that nine of ten such predictions stood for."""
    likely_range = step_time.range
    if likely_range is None or likely_range.basis == "measured":
        return "measured"
    within = f"{roughly(likely_range.low_s)} to {roughly(likely_range.high_s)} in nine of ten"
    if step_time.calibration is None:
        return f"{within}, by {_rates(likely_range)}"
    share = format_fraction(step_time.calibrated_share)
    return (
        f"{within}, calibrated (measured on {step_time.calibration.device[:80]}, "
        f"{step_time.calibration.date[:20]}; operators measured there make {share} "
        "of kernels' time)"
    )


def _rates(likely_range: TimeRange) -> str:
    """Rates that are used: the chip's own, which somebody published, or those of its siblings."""
    is_measured = likely_range.basis == "fitted"
    siblings = likely_range.rates_of[1:] if is_measured else likely_range.rates_of
    owned = " and ".join(f"{name}'s" for name in siblings)
    if is_measured:
        return f"published rates, some of them {owned}" if owned else "published rates"
    return f"{owned} rates" if owned else likely_range.basis


def _rate(throughput: Throughput, root: str) -> KeyFigure:
    """Tokens or samples a second, and the operators that tell how many there are in a step."""
    rates = [
        (name, format_rate(per_s), batch)
        for per_s, name, batch in (
            (throughput.tokens_per_s, "tokens/s", throughput.tokens),
            (throughput.samples_per_s, "samples/s", throughput.samples),
        )
        if per_s is not None and batch is not None
    ]
    (name, value, _), *others = rates
    sources = dict.fromkeys(_source(batch, root) for *_, batch in rates)
    remark = "".join(f"{rate} {other} " for other, rate, _ in others)
    ranks = throughput.data_parallel_ranks
    if ranks is not None:
        remark += f"in total of {ranks} ranks' own batches "
    return KeyFigure(name, value, f"{remark}(by {' and '.join(sources)})")


def _source(batch: Batch, root: str) -> str:
    if batch.line is None:
        return batch.op[:80]
    place = f"{short_path(batch.line.file, root)}:{batch.line.line}"
    return f"{batch.op[:80]} in {cut_left(place, NAME_WIDTH)}"


def _mfu(
    step_time: StepTime,
    utilisation: Utilisation,
    uncounted: Sequence[Uncounted],
    *,
    is_of_many: bool,
) -> KeyFigure:
    """A share of the chip's peak, by the ledger's convention."""
    assert utilisation.fraction is not None
    assert utilisation.peak_per_s is not None
    name, _, convention = utilisation.name.partition(", ")
    parts = ", ".join(
        f"{format_fraction(part.fraction)} {part.name}"
        for part in step_time.split
        if part.fraction is not None
    )
    return KeyFigure(
        name,
        format_fraction(utilisation.fraction),
        f"of {'this GPU: ' if is_of_many else ''}{format_flop_per_s(utilisation.peak_per_s)} "
        f"{utilisation.of.removeprefix('promised ')}{f', {convention}' if convention else ''}"
        f"{f' ({parts})' if parts else ''}{_without(uncounted)}",
    )


def _without(uncounted: Sequence[Uncounted]) -> str:
    """Operators whose FLOPs a figure lacks, most frequent first."""
    if not uncounted:
        return ""
    names = [each.op[:NAME_WIDTH] for each in uncounted[:MOST_LISTED]]
    more = len(uncounted) - len(names)
    return f", without FLOPs of {', '.join(names)}{f' and {more} more' if more > 0 else ''}"


def _cost(summary: Summary) -> Iterator[KeyFigure]:
    """The price of a thousand steps like this one, on all GPUs."""
    bill = summary.thousand_steps
    if bill.training is None:
        return
    if bill.price is None or bill.cost_usd is None:
        yield KeyFigure("cost", "unknown", "no source gives a price of this chip")
        return
    ranks = summary.world.size
    gpus = f" on {ranks} GPUs" if ranks > 1 else ""
    hourly = f"{format_usd(bill.price.usd_per_hour)} an hour{' each' if gpus else ''}"
    yield KeyFigure("cost", format_usd(bill.cost_usd), f"for 1,000 such steps{gpus}, at {hourly}")
