"""What `tally tune` found: the front, how each of it is run, what failed."""

from collections.abc import Iterator, Mapping
from functools import partial

from torchtally.report.chart import chart_text
from torchtally.report.documents.tune import tune_document
from torchtally.report.explained import page_text
from torchtally.report.grid import wrap
from torchtally.report.report import Look, Report
from torchtally.table import Chart, Column, Series, Table
from torchtally.tune.answer import TuneAnswer
from torchtally.tune.knobs import Settings
from torchtally.tune.points import TunePoint
from torchtally.units import Unit, format_count, format_seconds, format_usd

COLUMNS = (
    Column("front_letter", "", Unit.NAME),
    Column("gpus", "GPUs", Unit.NAME),
    Column("seconds", "time", Unit.SECONDS),
    Column("cost_usd", "cost", Unit.USD),
    Column("energy_joules", "energy", Unit.JOULES, rank=1),
    Column("peak_reserved_bytes", "reserved", Unit.BYTES),
    Column("step_s", "step", Unit.SECONDS, rank=3),
    Column("mfu", "MFU", Unit.FRACTION, rank=2),
    Column("setting_text", "settings", Unit.TEXT),
)
FAILED_COLUMNS = (
    Column("gpus", "GPUs", Unit.NAME),
    Column("setting_text", "settings", Unit.TEXT),
    Column("failure", "why", Unit.TEXT),
)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SHOWN = 20
"""Points and failures in a terminal; documents have all."""


def letter(place: int) -> str:
    """What a point of the front is called; "." behind the last letter."""
    return LETTERS[place] if place < len(LETTERS) else "."


def tune_report(
    answer: TuneAnswer, commands: Mapping[tuple[str, Settings], str], search: str
) -> Report:
    """The front in every format. `commands` are by a point's key; `search`: a digest of what was
    searched.
    """
    tables = [("front", front_table(answer))]
    if answer.failed:
        tables.append(("failed", failed_table(answer)))
    facts = tuple(sentences(answer))
    return Report(
        title=title(answer),
        facts=facts,
        tables=tuple(tables),
        text=partial(text, answer, commands, facts, tables),
        document=partial(tune_document, answer, search),
    )


def title(answer: TuneAnswer) -> str:
    """The answer in a sentence."""
    shown, best = answer.front, answer.cheapest
    length = f"{format_count(answer.amount)} {answer.length_in}"
    if not shown:
        return "no settings ran to the end of their steps"
    if best is None:
        if answer.deadline_s is not None and any(
            answer.cost(point).seconds <= answer.deadline_s for point in shown
        ):
            return f"{length}: the price of what meets the deadline is unknown"
        if answer.deadline_s is not None:
            least = format_seconds(answer.cost(shown[0]).seconds)
            limit = format_seconds(answer.deadline_s)
            return f"{length}: nothing meets the deadline of {limit}; the fastest takes {least}"
        return f"{length}: fastest on {where(answer, shown[0])}; no price is known"
    within = "" if answer.deadline_s is None else f" within {format_seconds(answer.deadline_s)}"
    return f"{length}: cheapest{within} on {where(answer, best)}"


def where(answer: TuneAnswer, point: TunePoint) -> str:
    cost = answer.cost(point)
    price = "" if cost.cost_usd is None else f" for {format_usd(cost.cost_usd)}"
    return f"{point.gpus} with {answer.text(point)}: {format_seconds(cost.seconds)}{price}"


def sentences(answer: TuneAnswer) -> Iterator[str]:
    """What a reader has to know beside the front."""
    shown = answer.front
    if shown and shown[0] is not answer.cheapest:
        yield f"Fastest: {where(answer, shown[0])}."
    for bound in answer.compute_bounds():
        beside = "" if bound.beside == "as it is" else f", with {bound.beside}"
        yield f"{bound.gpus}: the step is compute-bound from {bound.setting} on{beside}."
    ran = sum(point.was_run for point in answer.points)
    parts = [f"{ran} settings on GPUs were run, {len(answer.failed)} failed"]
    if answer.pruned:
        parts.append(f"{answer.pruned} were not, since their roofline cannot win")
    yield f"{'; '.join(parts)}."
    if answer.is_cut:
        yield "The limit of runs ended the search (--runs): others may be better."
    if answer.was_interrupted:
        yield "It was interrupted: others may be better."
    unpriced = dict.fromkeys(each.gpus for each in shown if each.gpus_usd_per_hour is None)
    if unpriced:
        yield f"No price is known of {', '.join(unpriced)}: give one with --price."


def front_table(answer: TuneAnswer) -> Table:
    rows = []
    for place, point in enumerate(answer.front):
        cost = answer.cost(point)
        rows.append(
            (letter(place), point.gpus, *(cost.seconds, cost.cost_usd, cost.energy_joules),
             point.peak_reserved_bytes, point.step_s, point.mfu, answer.text(point))
        )  # fmt: skip
    return Table(
        title="Pareto front of time, cost, energy and memory, the fastest first",
        columns=COLUMNS,
        rows=tuple(rows),
        note="Each was run on its GPUs. Better by 1 % in something than any faster one. Time: "
        "steps alone, without evaluation, checkpoints and start-up.",
    )


def failed_table(answer: TuneAnswer) -> Table:
    rows = ((point.gpus, answer.text(point), point.failure) for point in answer.failed)
    return Table("Settings that failed", FAILED_COLUMNS, tuple(rows))


def front_chart(answer: TuneAnswer) -> Chart | None:
    """Cost over time; None where there are no two priced points."""
    places = [
        (letter(place), (cost.seconds / 3600, cost.cost_usd))
        for place, point in enumerate(answer.front)
        if (cost := answer.cost(point)).cost_usd is not None
    ]
    if len(places) < 2:
        return None
    series = tuple(Series(name, (place,)) for name, place in places)
    return Chart("Cost in USD over hours", "hours", series)


def text(
    answer: TuneAnswer,
    commands: Mapping[tuple[str, Settings], str],
    facts: tuple[str, ...],
    tables: list[tuple[str, Table]],
    look: Look,
) -> str:
    """The page for a terminal: answer, tables, picture, commands, patches."""
    parts = [page_text(title(answer), facts, [table.top(SHOWN) for _, table in tables], look)]
    chart = front_chart(answer)
    if chart is not None:
        parts.append(chart_text(chart, width=look.width))
    lines = []
    patched: dict[str, list[str]] = {}
    for place, point in list(enumerate(answer.front))[:SHOWN]:
        diff = answer.patches.get(point.settings, "")
        if diff:
            patched.setdefault(diff, []).append(letter(place))
        lines += wrap(f"{letter(place)}  {commands[point.key]}", look.width)
    if lines:
        parts.append("\n".join(["Commands", *lines]) + "\n")
    for diff, letters in patched.items():
        parts.append(f"Patch of {', '.join(letters)}\n{diff}")
    return "\n".join(parts)
