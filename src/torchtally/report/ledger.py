"""The reports of a traced run: its page, a view, the roofline plot."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torchtally.fit.network_advisor import TimedChange, TimedRun
from torchtally.fit.results import ChangeResult
from torchtally.gates import Finding
from torchtally.ledger import Ledger
from torchtally.report.documents.run import run_document
from torchtally.report.documents.tables import view_document
from torchtally.report.plot import plot_text
from torchtally.report.report import Look, Report
from torchtally.report.text import closing_sentences, opening_sentences, summary_text
from torchtally.table import Table
from torchtally.units import format_seconds
from torchtally.views import by
from torchtally.views.roofline_plot import roofline_plot
from torchtally.views.summary import summarise

PAGE_VIEWS = ("bound", "line", "repeated-module")
"""Of a ledger's report, where it is not the text for a terminal."""
MOST_ROWS = 50
"""Of each of them; the document has all."""


def ledger_report(
    ledger: Ledger,
    *,
    file: str = "",
    columns: Sequence[str] | None = None,
    changes: Sequence[ChangeResult] | None = None,
    timed_changes: Sequence[TimedChange] = (),
    unchanged: TimedRun | None = None,
    findings: Sequence[Finding] = (),
) -> Report:
    """The page about a run. `file` is the trace's, for the commands it suggests; `columns` are
    those to show in the tables that have any of them; `changes` were tried to make it fit,
    `timed_changes` to hide more of its network; `unchanged` is the run without its own changes.
    `findings` are of its limits.
    """

    def text(look: Look) -> str:
        return summary_text(summary, file=file, width=look.width, is_coloured=look.is_coloured)

    summary = summarise(ledger).with_columns(columns or ())
    return Report(
        title=ledger.trace.script,
        facts=(*opening_sentences(summary, is_titled=True), software_fact(ledger)),
        plots=() if ledger.roofline is None else (roofline_plot(ledger),),
        tables=tuple(
            (key, by(ledger, key).with_some_of(columns or ()).top(MOST_ROWS)) for key in PAGE_VIEWS
        ),
        remarks=closing_sentences(summary),
        text=text,
        document=partial(
            run_document,
            ledger,
            changes=changes,
            timed_changes=timed_changes,
            unchanged=unchanged,
            findings=findings,
        ),
    )


def ledger_facts(ledger: Ledger) -> tuple[str, ...]:
    """Facts: on which chip, of which period, by which convention."""
    step_s = ledger.step_s
    how = "measured" if ledger.is_measured else "predicted"
    time = "" if step_s is None else f", {format_seconds(step_s)} {how}"
    return f"On {ledger.trace.chip}, per {ledger.period}{time}.", software_fact(ledger)


def software_fact(ledger: Ledger) -> str:
    """Fact of the PyTorch and the convention that a ledger is by."""
    version = ledger.trace.torch_version
    torch = f"PyTorch {version}; " if version else ""
    return f"{torch}{ledger.convention.description}."


def view_report(table: Table, ledger: Ledger) -> Report:
    """One view in full."""
    return Report(
        title=ledger.trace.script,
        facts=ledger_facts(ledger),
        tables=(("view", table),),
        document=partial(view_document, table, ledger),
    )


def roofline_report(ledger: Ledger) -> Report:
    """The page about a run; for a terminal, its roofline plot alone."""
    plot = roofline_plot(ledger)

    def text(look: Look) -> str:
        return plot_text(
            plot, width=look.width, is_coloured=look.is_coloured, is_ascii=look.is_ascii
        )

    return replace(ledger_report(ledger), plots=(plot,), text=text)
