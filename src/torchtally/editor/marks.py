"""Texts beside lines: marks behind them, what hovering shows, remarks on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtally.editor.answer import LineAnswer, ScriptAnswer
from torchtally.ledger import Line, Total
from torchtally.report.brief import key_figures
from torchtally.report.prose import in_words
from torchtally.report.text import verdict
from torchtally.trace import TensorSpec
from torchtally.units import format_bytes, format_flops, format_fraction, format_seconds
from torchtally.views.operator_calls import shapes

LEAST_SHARE = 0.001
"""Of the step, that a line takes to be marked; else it saves something."""
STALE = "before this edit"


@dataclass(frozen=True, slots=True)
class LineRemark:
    """A sentence on a line, or on the run as a whole."""

    file: str
    line: int
    """0: of none; it stands at the script's first."""
    text: str
    is_warning: bool


def mark(answer: LineAnswer, run: ScriptAnswer) -> str:
    """Mark of a line, "14.9 ms · 2.9 GiB saved"; "" where it costs next to nothing."""
    total, whole = answer.total, run.brief.summary.total
    parts = []
    if run.is_timed and total.seconds >= LEAST_SHARE * whole.seconds:
        parts.append(format_seconds(total.seconds))
    elif not run.is_timed and total.flops >= LEAST_SHARE * whole.flops > 0:
        parts.append(format_flops(total.flops))
    if total.bytes_saved:
        parts.append(f"{format_bytes(total.bytes_saved)} saved")
    return " · ".join(parts)


def stale_mark(text: str) -> str:
    """A mark of a line that was edited since."""
    return f"{text} ({STALE})"


def hover(answer: LineAnswer, run: ScriptAnswer, *, is_stale: bool) -> str:
    """Markdown: forward, backward, bound, shapes of the line's tensors."""
    total, chip = answer.total, run.brief.summary.verdict.chip
    whole_s = run.brief.summary.total.seconds
    figures = [mark(answer, run) or format_flops(total.flops)]
    if run.is_timed and whole_s:
        figures.append(f"{format_fraction(total.seconds / whole_s)} of a step on {chip}")
    if answer.bound:
        figures.append(f"bound: {answer.bound}")
    parts = [f"**{figures[0]}**{''.join(f', {each}' for each in figures[1:])}"]
    if is_stale:
        parts.append(f"*{STALE}: the line was* `{answer.line.text}`")
    parts.append("\n".join(phase_rows(answer, is_timed=run.is_timed)))
    parts.append("\n".join(call_rows(answer)))
    return "\n\n".join(parts)


def phase_rows(answer: LineAnswer, *, is_timed: bool) -> Iterator[str]:
    """A table of the line's phases."""
    yield "| phase | time | FLOPs | read | written |"
    yield "|---|--:|--:|--:|--:|"
    for phase, total in answer.phases.items():
        yield f"| {phase} | {' | '.join(figures_of(total, is_timed=is_timed))} |"


def figures_of(total: Total, *, is_timed: bool) -> tuple[str, ...]:
    """Time, FLOPs and bytes moved."""
    seconds = format_seconds(total.seconds) if is_timed else ""
    sizes = (format_bytes(total.bytes_read), format_bytes(total.bytes_written))
    return seconds, format_flops(total.flops), *sizes


def call_rows(answer: LineAnswer) -> Iterator[str]:
    """A table of the line's operators."""
    yield "| operator | inputs | outputs |"
    yield "|---|---|---|"
    for call in answer.calls:
        yield f"| {call.name} | {tensors(call.inputs)} | {tensors(call.outputs)} |"


def tensors(specs: Sequence[TensorSpec]) -> str:
    """Shapes and dtypes."""
    return ", ".join(f"`{shapes([spec])} {spec.dtype}`" for spec in specs)


def remarks(run: ScriptAnswer) -> Iterator[LineRemark]:
    """Whether it fits, how it ended where it did not end well, and the diagnoses."""
    summary = run.brief.summary
    outcome = summary.verdict
    if outcome.claim in ("does not fit", "close"):
        frame = None if summary.shortage is None else summary.shortage.site.line
        place = (run.script, 0) if frame is None else (frame.file, frame.line)
        yield LineRemark(*place, verdict(outcome), is_warning=True)
    elif summary.ending.message and summary.ending.kind == "exception":
        text = f"the simulated run raised {summary.ending.message}"
        yield LineRemark(run.script, 0, text, is_warning=True)
    for each in summary.diagnoses:
        text = f"{in_words(each.cause)} {each.remedy}"
        yield LineRemark(*place_of_line(each.line, run.script), text, is_warning=False)


def place_of_line(line: Line | None, script: str) -> tuple[str, int]:
    return (script, 0) if line is None else (line.file, line.line)


def headline(run: ScriptAnswer) -> str:
    """The run in a line: "fits H100-SXM: peak ...; step 60.37 ms ..."."""
    figures = ", ".join(key_figures(run.brief))
    return f"{verdict(run.brief.summary.verdict)}{f'; {figures}' if figures else ''}"
