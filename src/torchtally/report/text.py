"""Reports for a terminal, a pipe or a log: plain lines, in colour where there is somebody to see.

Numbers are never cut. Names come from strangers: they are stripped of control characters and never
read as markup.
"""

import io
import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from torchtally.report.grid import INDENT, table_lines, wrapped
from torchtally.report.plain import cut_left, cut_right, printable
from torchtally.units import format_bytes, format_count
from torchtally.views import Table
from torchtally.views.lines import short_path
from torchtally.views.shortage import Shortage
from torchtally.views.summary import Summary, Verdict

MOST_LISTED = 3
"""Of placeholders, notes and uncounted operators; the rest are numbered."""
NAME_WIDTH = 48
TOP_HOLDERS = 8


def table_text(table: Table, *, width: int = 80, is_coloured: bool = False) -> str:
    """A table with its totals."""
    return _joined(table_lines(table, width), is_coloured)


def summary_text(
    summary: Summary, *, file: str = "", width: int = 80, is_coloured: bool = False
) -> str:
    """The one-page report. `file` is the trace's, for the commands it suggests."""
    return _joined(list(_summary_lines(summary, file, width)), is_coloured)


def _joined(lines: list[Text], is_coloured: bool) -> str:
    if not is_coloured:
        return "".join(line.plain + "\n" for line in lines)
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="standard", width=100_000, highlight=False
    )
    for line in lines:
        console.print(line, soft_wrap=True)
    return stream.getvalue()


def _summary_lines(summary: Summary, file: str, width: int) -> Iterator[Text]:
    yield from _verdict(summary, width)
    if summary.shortage is not None:
        yield from _shortage(summary.shortage, width)
    else:
        yield from _ending(summary, width)
    yield Text()
    yield from _heading(summary, width)
    if summary.total.count:
        yield from _tables(summary, width)
        yield Text()
        yield from _coverage(summary, width)
    yield from _placeholders(summary, width)
    yield from _notes(summary, width)
    if summary.total.count:
        yield from _next(summary, file)


def _tables(summary: Summary, width: int) -> Iterator[Text]:
    yield from table_lines(summary.phases, width, is_brief=True)
    rest = (
        summary.categories,
        summary.peak_lines,
        summary.lines,
        summary.library_lines,
        summary.modules,
    )
    for table in rest:
        if table is not None and table.rows:
            yield Text()
            yield from table_lines(table, width, is_brief=True)


def _prose(text: str, width: int, style: str = "") -> Iterator[Text]:
    for number, line in enumerate(wrapped(text, width)):
        yield Text(line if number else line.strip(), style=style)


def verdict(found: Verdict) -> str:
    """One line: does it fit."""
    chip = printable(found.chip)
    if not found.device:
        return f"nothing was put on the {chip}"
    peak = f"peak {format_bytes(found.reserved_bytes)}"
    if found.capacity_bytes is None:
        return f"{peak} on {chip}, whose memory is not known"
    claim = "fits" if found.fits else "does not fit"
    return f"{claim} {chip}: {peak} of {format_bytes(found.capacity_bytes)}"


def _verdict(summary: Summary, width: int) -> Iterator[Text]:
    found = summary.verdict
    style = {True: "bold green", False: "bold red", None: "bold"}[found.fits]
    yield from _prose(verdict(found), width, style if found.device else "bold red")
    if found.device:
        text = (
            f"Reserved by the allocator; {format_bytes(found.peak_bytes)} of it allocated at most, "
            f"in {found.peak_moment}. "
        )
        if found.context_bytes:
            text += f"The CUDA context takes {format_bytes(found.context_bytes)} more (estimated)."
    elif summary.ending.kind in ("steps", "exit"):
        text = (
            "The script kept all its tensors on the CPU. Ask it for the GPU: many scripts have an "
            "option for that (--device cuda), others need model.to('cuda') and the same for inputs."
        )
    else:
        text = "The script did not get that far."
    yield from map(Text, wrapped(text, width))


def _shortage(found: Shortage, width: int) -> Iterator[Text]:
    """Where it ran out, and of what."""
    refusal = found.refusal
    asked, free = format_bytes(refusal.requested_bytes), format_bytes(refusal.free_bytes)
    allocated = format_bytes(refusal.allocated_bytes)
    unused = format_bytes(refusal.reserved_bytes - refusal.allocated_bytes)
    yield from _prose(
        f"Out of memory in {found.moment}: it asked for {asked}, with {allocated} allocated, "
        f"{unused} reserved but unusable for it, and {free} of the chip free.",
        width,
        "yellow",
    )
    line = refusal.site.line
    if line is not None and line.text:
        yield Text(f"{INDENT}{cut_right(printable(line.text), width - len(INDENT))}")
    yield Text()
    yield from table_lines(found.holders.top(TOP_HOLDERS), width, is_brief=True)


def _ending(summary: Summary, width: int) -> Iterator[Text]:
    ending = summary.ending
    how = {
        "steps": "",
        "exit": "" if summary.steps else "The script ended by itself before a training step.",
        "exception": "The script failed; this is the account of what ran before.",
        "time": "Out of time; this is the account of what ran before.",
        "interrupted": "Interrupted; this is the account of what ran before.",
    }.get(ending.kind, f"Ended by {ending.kind}; this is the account of what ran before.")
    if how:
        yield from _prose(f"{how} {ending.message[:400]}".strip(), width, "yellow")


def _heading(summary: Summary, width: int) -> Iterator[Text]:
    yield Text(cut_right(summary.script, width), style="bold")
    parts = [
        f"per {summary.period}",
        f"{format_count(summary.parameters)} parameters" if summary.parameters else "",
        summary.convention,
    ]
    yield from _prose(", ".join(part for part in parts if part), width)


def _coverage(summary: Summary, width: int) -> Iterator[Text]:
    found = summary.coverage
    if not found.uncounted:
        text = f"Operators counted: {found.counted}; {found.free} more are views or metadata."
        yield from _prose(f"{text} None is uncounted.", width)
        return
    text = f"Operators counted: {found.counted}; {found.free} are views or metadata."
    yield from _prose(f"{text} NOT counted, in no total: {found.uncounted_ops}.", width, "yellow")
    for it in found.uncounted[:MOST_LISTED]:
        yield from map(
            Text, wrapped(f"{cut_left(it.op, NAME_WIDTH)} x {it.count} ({it.reason[:200]})", width)
        )
    yield from _more(len(found.uncounted))


def _placeholders(summary: Summary, width: int) -> Iterator[Text]:
    found = summary.placeholders
    if not found:
        return
    yield from _prose("Values that no virtual tensor has, and what the script got:", width)
    for it in sorted(found, key=lambda it: -it.count)[:MOST_LISTED]:
        place = "(no line)"
        if it.frame:
            place = f"{short_path(it.frame.file, summary.own_root)}:{it.frame.line}"
        place, source = cut_left(place, NAME_WIDTH), it.frame.text[:200] if it.frame else ""
        text = f"{place}  {source}  ({it.op[:80]} gave {it.given[:80]}, {_times(it.count)})"
        yield from map(Text, wrapped(text, width))
    yield from _more(len(found))


def _notes(summary: Summary, width: int) -> Iterator[Text]:
    if not summary.notes:
        return
    yield from _prose("Done otherwise than on a real GPU:", width)
    for it in summary.notes[:MOST_LISTED]:
        times = f" ({_times(it.count)})" if it.count > 1 else ""
        yield from map(Text, wrapped(f"{it.text[:400]}{times}", width))
    yield from _more(len(summary.notes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _more(count: int) -> Iterator[Text]:
    if count > MOST_LISTED:
        yield Text(f"{INDENT}and {count - MOST_LISTED} more: --json lists all")


def _next(summary: Summary, file: str) -> Iterator[Text]:
    if not file:
        return
    name = shlex.quote(printable(file))
    line = "library-line" if summary.library_lines is not None else "line"
    yield Text()
    yield Text("Next", style="bold")
    yield Text(f"{INDENT}tally show {name} --by {line}      (module, op, phase, timeline, growth)")
    yield Text(f"{INDENT}tally show {name} --json report.json")
