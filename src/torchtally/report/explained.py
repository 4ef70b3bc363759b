"""The page about a run that a profiler recorded."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from torchtally.ledger import Ledger
from torchtally.ledger.joining import Joined
from torchtally.report.documents.run import run_document
from torchtally.report.documents.tables import AgainstDocument, table_parts
from torchtally.report.grid import table_lines, wrap
from torchtally.report.report import Look, Report
from torchtally.report.terminal import join
from torchtally.table import Table
from torchtally.trace import Measured
from torchtally.trace.measured import NOT_COUNTED
from torchtally.units import format_bytes, format_flops, format_fraction, format_seconds
from torchtally.views import by
from torchtally.views.against import kernel_ratios, lines_against, lost_time, unmatched_operators
from torchtally.views.columns import part_of
from torchtally.views.real_run import RealRun, real_run
from torchtally.views.summary import reserved_bytes_of
from torchtally.views.utilisation import model_utilisation

ROWS = {"phase": None, "bound": None, "idle": 6, "op": 10, "slow": 6, "library-line": 8,
        "repeated-module": 6, "collective": 6}  # fmt: skip
"""Views of the page, and how many of their rows."""
MOST_UNCOUNTED = 4
MOST_RANKS = 8


def explained_report(ledger: Ledger, columns: Sequence[str] | None = None) -> Report:
    """Report of the time of a measured period."""
    measured = ledger.trace.measured
    assert measured is not None, "a trace that no profiler recorded is shown by `ledger_report`"
    run = real_run(ledger)
    left_out = views_to_leave_out(ledger, measured)
    chosen = (
        (name, by(ledger, name).with_some_of(columns or ()).top(rows))
        for name, rows in ROWS.items()
        if name not in left_out
    )
    tables = tuple((name, table) for name, table in chosen if table.rows)
    title, sentences = title_of(ledger, measured), tuple(facts(ledger, measured, run))
    return Report(
        title=title,
        facts=sentences,
        tables=tables,
        text=lambda look: page_text(title, sentences, [table for _, table in tables], look),
        document=lambda: run_document(ledger, run=run),
    )


def page_text(title: str, sentences: Sequence[str], tables: Sequence[Table], look: Look) -> str:
    """The sentences, the first in bold, then the tables."""
    lines = [
        Text(line.strip() if not number else line, style="bold")
        for number, line in enumerate(wrap(title, look.width))
    ]
    for sentence in sentences:
        lines += map(Text, wrap(sentence, look.width))
    for table in tables:
        lines += [Text(), *table_lines(table, look.width, is_brief=True)]
    return join(lines, look.is_coloured)


def against_report(real: Ledger, predicted: Ledger, join: Joined) -> Report:
    """A measured step beside the simulated one that its operators were joined with. `real` has the
    lines of the joined operators.
    """
    measured = real.trace.measured
    assert measured is not None, "see explained_report"
    tables = {
        "lost": lost_time(real, predicted, join),
        "lines": lines_against(real, predicted).top(AGAINST_ROWS),
        "unmatched": unmatched_operators(join, real, predicted).top(AGAINST_ROWS),
        "slow": by(real, "slow").top(AGAINST_ROWS),
    }
    title = f"{measured.file} beside {predicted.trace.script}, both on {real.trace.chip}"
    sentences = tuple(against_facts(real, predicted, join))
    shown = tuple((name, table) for name, table in tables.items() if table.rows)
    return Report(
        title=title,
        facts=sentences,
        tables=shown,
        text=lambda look: page_text(title, sentences, [table for _, table in shown], look),
        document=lambda: AgainstDocument(
            measured_s=real.total.seconds,
            predicted_s=predicted.total.seconds,
            joined_share=join.share,
            tables=table_parts(
                (
                    ("lost", tables["lost"]),
                    ("lines", lines_against(real, predicted)),
                    ("unmatched", unmatched_operators(join, real, predicted)),
                )
            ),
        ),
    )


AGAINST_ROWS = 10


def against_facts(real: Ledger, predicted: Ledger, join: Joined) -> Iterator[str]:
    step_s, predicted_s = real.total.seconds, predicted.total.seconds
    yield (
        f"Measured {format_seconds(step_s)} ({real.period}), predicted "
        f"{format_seconds(predicted_s)} ({predicted.period}): "
        f"{format_fraction(part_of(predicted_s, step_s))} of it."
    )
    kernel_s = sum(real.slot(ours).kernel_s for ours, _ in join.pairs)
    yield (
        f"{format_fraction(join.share)} of the measured operators, with "
        f"{format_fraction(part_of(kernel_s, real.total.kernel_s))} of the kernels' time, match "
        "the simulated run, which gives their lines and modules."
    )
    ratios = kernel_ratios(real, predicted, join)
    if ratios.is_clock_down and ratios.compute is not None and ratios.memory is not None:
        yield (
            f"Compute-bound kernels take {ratios.compute:.2f} times their prediction, "
            f"memory-bound ones {ratios.memory:.2f} times: the clock was lower (power or heat), "
            "or different product kernels ran."
        )
    if real.knows_memory:
        peak, predicted_peak = real.memory.peak_bytes, predicted.memory.peak_bytes
        held, predicted_held = reserved_bytes_of(real), reserved_bytes_of(predicted)
        yield (
            f"Memory: {format_bytes(peak)} allocated at most, predicted "
            f"{format_bytes(predicted_peak)}; {format_bytes(held)} reserved, predicted "
            f"{format_bytes(predicted_held)}."
        )


def views_to_leave_out(ledger: Ledger, measured: Measured) -> set[str]:
    """Views that would have nothing to say."""
    left_out = set()
    if not measured.has_lines:
        left_out |= {"library-line", "repeated-module"}
    if len(ledger.by_phase()) < 2:
        left_out.add("phase")
    if not ledger.total.network_bytes and not ledger.total.network_s:
        left_out.add("collective")
    return left_out


def title_of(ledger: Ledger, measured: Measured) -> str:
    world = ledger.trace.world
    rank = f", rank {world.rank} of {world.size}" if world.size > 1 else ""
    return f"{measured.file}: measured on {ledger.trace.chip}{rank}, by {measured.made_by}"


def facts(ledger: Ledger, measured: Measured, run: RealRun) -> Iterator[str]:
    period = ledger.period[:1].upper() + ledger.period[1:]
    whole = run.step_s
    yield (
        f"{period}: {format_seconds(whole)}, "
        f"{format_fraction(part_of(run.computing_s, whole))} computing"
        + (f", {format_fraction(part_of(run.exposed_s, whole))} exposed network"
           if run.exposed_s > 0 else "")
        + (f", {format_fraction(part_of(run.waiting_s, whole))} waiting for late ranks"
           if run.waiting_s > 0 else "")
        + "".join(
            f", {format_fraction(part_of(seconds, whole))} idle ({cause})"
            for cause, seconds in run.idle
            if seconds > 0.001 * whole
        )
        + "."
    )  # fmt: skip
    if ledger.others:
        ranks = ", ".join(str(other.trace.world.rank) for other in ledger.others[:MOST_RANKS])
        more = f" and {len(ledger.others) - MOST_RANKS} more" * (len(ledger.others) > MOST_RANKS)
        yield f"Also read: rank {ranks}{more}; `--by rank` compares them."
    utilisation = model_utilisation(ledger)
    if ledger.total.flops:
        text = f"{format_flops(ledger.total.flops)}"
        if utilisation is not None and utilisation.fraction is not None:
            text += (
                f"; {utilisation.name}: {format_fraction(utilisation.fraction)} of {utilisation.of}"
            )
        yield f"{text}."
    if run.roofline_s > 0:
        timed = part_of(run.timed_s, run.kernel_s)
        yield (
            f"Kernels took {format_seconds(run.kernel_s)}. The roofline of {ledger.trace.chip} "
            f"has a time for {format_fraction(timed)} of that: {format_seconds(run.roofline_s)} "
            f"beside {format_seconds(run.timed_s)} measured "
            f"({format_fraction(part_of(run.roofline_s, run.timed_s))})."
        )
    if measured.has_memory:
        yield (
            f"Memory: {format_bytes(ledger.memory.peak_bytes)} allocated at most, "
            f"{format_bytes(reserved_bytes_of(ledger))} reserved."
        )
    yield from gaps_of(ledger, measured, run)


def gaps_of(ledger: Ledger, measured: Measured, run: RealRun) -> Iterator[str]:
    """What the trace lacks, and what of it is in no table."""
    for part in measured.lost:
        yield (
            f"Left out: {part.kernels} kernels of {format_seconds(part.duration_ns * 1e-9)}, "
            f"{part.reason}."
        )
    for note in ledger.trace.notes:
        if not note.text.startswith(NOT_COUNTED):
            yield f"{note.text[:1].upper()}{note.text[1:]} ({note.count} of them)."
    if run.uncounted:
        named = ", ".join(
            f"{name} {format_seconds(seconds)}" for name, seconds in run.uncounted[:MOST_UNCOUNTED]
        )
        more = len(run.uncounted) - MOST_UNCOUNTED
        yield (
            f"Not counted: {format_fraction(part_of(run.kernel_s - run.counted_s, run.kernel_s))} "
            f"of the kernels' time, of {named}"
            + (f" and {more} more" if more > 0 else "")
            + ". Their FLOPs and bytes are in no total."
        )
    if not measured.has_shapes:
        yield (
            "The trace has no shapes: no FLOPs, bytes or bounds. Record with record_shapes=True "
            "(`tally explain --record`), or join it with a simulated run (--against)."
        )
    if not measured.has_lines:
        yield (
            "The trace has no stacks: no lines or modules. Record with with_stack=True, or join it "
            "with a simulated run (--against), which has the exact lines."
        )
    else:
        yield (
            "Lines are the first ones of functions, as the profiler records them; its stacks slow "
            "the host, so idle time is longer than without."
        )
