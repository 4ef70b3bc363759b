"""A prediction held against a measured run, as text: the verdict first, then the tables."""

import textwrap
from functools import partial

from torchtally.chips import Chip
from torchtally.memory.comparison import AuditVerdict, Comparison, Pair
from torchtally.progress import printable
from torchtally.report.documents.audit import MeasurementsDocument, audit_document
from torchtally.report.grid import table_lines, wrap
from torchtally.report.keys import dumps
from torchtally.report.report import Report
from torchtally.trace.measurement import Measurement
from torchtally.units import format_bytes, format_fraction
from torchtally.views.audit import categories, lines_at_peak, peaks

MOST_UNEXPLAINED = 0.2
"""Share of a peak that rests of blocks may be; beyond it the history has gaps."""


def audit_text(comparison: Comparison, chip: Chip, *, width: int, top: int = 15) -> str:
    """The verdict first, then the tables."""
    if comparison.verdict is AuditVerdict.FAILED:
        return failure_text(comparison, width)
    lines = headline(comparison, width)
    for remark in remarks(comparison, chip):
        lines += wrap(remark, width)
    for table in (peaks(comparison), categories(comparison), lines_at_peak(comparison).top(top)):
        lines += ["", *(table_line.plain for table_line in table_lines(table, width))]
    return "\n".join(printable(line).rstrip() for line in lines) + "\n"


def failure_text(comparison: Comparison, width: int) -> str:
    """What there is to say of a script that failed."""
    lines = ["nothing to compare: the script failed", *wrap(comparison.failure, width)]
    if not comparison.measured.failure and comparison.predicted.output:
        lines.append("  The last lines of its output there:")
        lines += [f"    {printable(line)}" for line in comparison.predicted.output.splitlines()]
    return "\n".join(lines) + "\n"


def headline(comparison: Comparison, width: int) -> list[str]:
    """The verdict, and how far off the two peaks are."""
    verdict = "within" if comparison.verdict is AuditVerdict.WITHIN else "OUTSIDE"
    allocated, reserved = off(comparison.allocated), off(comparison.reserved)
    figures = f"peak allocated predicted {allocated}, peak reserved {reserved}"
    if comparison.measured.is_out_of_memory != comparison.predicted.is_out_of_memory:
        figures = comparison.disagreements[0]
    line = f"{verdict} tolerance: {figures}"
    return textwrap.wrap(line, width, subsequent_indent="  ")


def off(pair: Pair) -> str:
    """How far a prediction is off, in words."""
    if not pair.off_bytes:
        return "to the byte"
    direction = "too high" if pair.off_bytes > 0 else "too low"
    size = format_bytes(abs(pair.off_bytes))
    if not pair.measured_bytes:
        return f"{size} {direction}"
    return f"{abs(pair.off_bytes) / pair.measured_bytes:.2%} ({size}) {direction}"


def remarks(comparison: Comparison, chip: Chip) -> list[str]:
    """What a reader has to know beside the numbers."""
    ours, theirs = comparison.measured, comparison.predicted
    kept = [
        f"Tolerances: {format_fraction(comparison.tolerance)} of allocated, "
        f"{format_fraction(comparison.reserved_tolerance)} of reserved. Measured on {ours.device} "
        f"with torch {ours.torch}, predicted for {chip.name}."
    ]
    if comparison.disagreements:
        kept.append(f"Disagreement: {'; '.join(comparison.disagreements)}.")
    if ours.is_out_of_memory and theirs.is_out_of_memory:
        kept.append("Both ran out of memory: these are the peaks up to that point.")
    elif not ours.steps:
        kept.append("No training step was completed on the GPU.")
    if ours.peak_step != theirs.peak_step:
        kept.append(
            f"The peak is in step {ours.peak_step} on the GPU and in step {theirs.peak_step} of "
            "the simulation: categories and lines show different moments."
        )
    for run, size in (
        ("of the real run", comparison.unexplained.measured_bytes),
        ("of the simulated run", comparison.unexplained.predicted_bytes),
    ):
        if size > MOST_UNEXPLAINED * max(comparison.allocated.measured_bytes, 1):
            kept.append(
                f"The allocator's history {run} lacks {format_bytes(size)} of the peak: a script "
                "that records the history itself stops our recording. By step, category and "
                "line, nothing can be compared."
            )
    if abs(ours.total_memory_bytes - theirs.total_memory_bytes) > 0.02 * ours.total_memory_bytes:
        kept.append(
            f"The GPU has {format_bytes(ours.total_memory_bytes)} and the simulated one "
            f"{format_bytes(theirs.total_memory_bytes)}: name the right one with --gpu."
        )
    return kept


def audit_report(comparison: Comparison, chip: Chip, *, top: int = 15) -> Report:
    """The comparison in every format; the text shows `top` lines."""
    tables = {
        "peaks": peaks(comparison),
        "held": categories(comparison),
        "lines": lines_at_peak(comparison),
    }
    return Report(
        title=f"Predicted and measured memory on {chip.name}",
        facts=tuple(remarks(comparison, chip)),
        tables=tuple((name, table) for name, table in tables.items() if table.rows),
        text=lambda look: audit_text(comparison, chip, width=look.width, top=top),
        document=partial(audit_document, comparison, chip),
    )


def runs_document(measured: Measurement, predicted: Measurement) -> str:
    """Both runs themselves, to be compared again."""
    return dumps(MeasurementsDocument(measured.to_json(), predicted.to_json()))
