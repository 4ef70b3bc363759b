"""The reports of the commands: which tables, plots, text and document each of them has."""

from collections.abc import Sequence
from functools import partial

from torchtally.chips import Chip
from torchtally.fit.results import Result
from torchtally.ledger import Ledger
from torchtally.plan.questions import Answer
from torchtally.report.answer import answer_tables, answer_text, headline
from torchtally.report.answer_json import answer_document
from torchtally.report.chip import chip_text, facts_table
from torchtally.report.json import (
    changes_document,
    chips_document,
    ledger_document,
    table_document,
)
from torchtally.report.plot import plot_text
from torchtally.report.report import Look, Report
from torchtally.report.terminal import table_text
from torchtally.report.text import summary_text
from torchtally.table import Table
from torchtally.units import format_seconds
from torchtally.views import by
from torchtally.views.bench import BenchView
from torchtally.views.chips import chip_table
from torchtally.views.roofline_plot import roofline_plot
from torchtally.views.summary import summarise

LEDGER_VIEWS = ("bound", "line", "repeated-module")
"""Of a ledger's report, where it is not the text for a terminal."""
MOST_ROWS = 50
"""Of each of them; the document has all."""
MOST_BENCH_ROWS = 12
"""Of a table of `tally bench` on a terminal."""


def ledger_report(
    ledger: Ledger, *, file: str = "", changes: Sequence[Result] | None = None
) -> Report:
    """The page about a run. `file` is the trace's, for the commands it suggests; `changes` are
    those that were tried to make it fit.
    """

    def document() -> dict[str, object]:
        tried = {} if changes is None else {"changes": changes_document(changes)}
        return {**ledger_document(ledger), **tried}

    def text(look: Look) -> str:
        summary = summarise(ledger)
        return summary_text(summary, file=file, width=look.width, is_coloured=look.is_coloured)

    return Report(
        title=ledger.trace.script,
        facts=ledger_facts(ledger),
        plots=() if ledger.roofline is None else (roofline_plot(ledger),),
        tables=tuple((key, by(ledger, key).top(MOST_ROWS)) for key in LEDGER_VIEWS),
        text=text,
        document=document,
    )


def ledger_facts(ledger: Ledger) -> tuple[str, ...]:
    """On which chip, of which period, by which convention."""
    trace, step_s = ledger.trace, ledger.step_s
    time = "" if step_s is None else f", {format_seconds(step_s)} predicted"
    return (
        f"On {trace.chip}, per {ledger.period}{time}.",
        f"PyTorch {trace.torch_version}; {ledger.convention.description}.",
    )


def view_report(table: Table, ledger: Ledger) -> Report:
    """One view in full."""
    return Report(
        title=ledger.trace.script,
        facts=ledger_facts(ledger),
        tables=(("view", table),),
        document=partial(table_document, table, ledger),
    )


def roofline_report(ledger: Ledger) -> Report:
    """The roofline plot; on a page, the views beside it."""
    plot = roofline_plot(ledger)

    def text(look: Look) -> str:
        return plot_text(
            plot, width=look.width, is_coloured=look.is_coloured, is_ascii=look.is_ascii
        )

    return Report(
        title=ledger.trace.script,
        facts=ledger_facts(ledger),
        plots=(plot,),
        tables=tuple((key, by(ledger, key).top(MOST_ROWS)) for key in LEDGER_VIEWS),
        text=text,
        document=partial(ledger_document, ledger),
    )


def chips_report(chips: Sequence[Chip]) -> Report:
    """Chips side by side."""
    return Report(
        title="Chips",
        tables=(("chips", chip_table(chips)),),
        document=partial(chips_document, chips),
    )


def chip_report(chip: Chip) -> Report:
    """All that is known of one chip, each number with its source."""
    return Report(
        title=chip.name,
        tables=(("facts", facts_table(chip)),),
        text=lambda look: chip_text(chip, width=look.width),
        document=partial(chips_document, (chip,)),
    )


def bench_report(view: BenchView) -> Report:
    """What was measured of a device; the tables are shortened on a terminal."""

    def text(look: Look) -> str:
        width, colour = look.width, look.is_coloured
        parts = [plot_text(view.plot, width=width, is_coloured=colour, is_ascii=look.is_ascii)]
        parts += [
            table_text(table.top(MOST_BENCH_ROWS), width=width, is_coloured=colour)
            for _, table in view.tables
        ]
        return "\n".join(parts)

    return Report(title=view.title, plots=(view.plot,), tables=view.tables, text=text)


def answer_report(answer: Answer, *, is_explained: bool = False) -> Report:
    """A planner's answer; explained, with all its working."""

    def text(look: Look) -> str:
        return answer_text(
            answer, is_explained=is_explained, width=look.width, is_coloured=look.is_coloured
        )

    return Report(
        title=headline(answer),
        facts=tuple(fact for fact in (*answer.assumptions, *answer.unknown) if fact),
        tables=answer_tables(answer),
        text=text,
        document=partial(answer_document, answer),
    )


def table_report(table: Table) -> Report:
    """A table by itself."""
    return Report(title=table.title, tables=(("rows", table),))
