"""The brief answer about a run: at most twelve lines of text, or a kilobyte of JSON."""

import json
from collections.abc import Callable, Iterator, Sequence

from torchtally.brief.answer import BriefAnswer, ChangedLine, DearLine, SinceLastRun
from torchtally.fit.results import ChangeResult
from torchtally.progress import printable
from torchtally.report.diagnoses import diagnosis_sentences
from torchtally.report.documents.brief import (
    BriefDocument,
    ChangedLinePart,
    DearLinePart,
    SinceLastRunPart,
)
from torchtally.report.gates import sentence
from torchtally.report.key_figures import period_name
from torchtally.report.keys import packed
from torchtally.report.placeholders import departure_sentences, place_of
from torchtally.report.plain import cut_left, cut_right
from torchtally.report.report import Look, Report
from torchtally.report.text import CLOSE_MEANS, verdict
from torchtally.trace import Use
from torchtally.units import (
    format_bytes,
    format_flops,
    format_fraction,
    format_rate,
    format_seconds,
    format_usd,
    roughly,
)

MOST_LINES = 12
MOST_BYTES = 1024
"""Of the document as it is printed, its line's end among them."""
LINE_WIDTH = 160
"""A longer line of the text is cut."""
PLACE_WIDTH = 32
MOST_DOUBTS = 3
ROOMS = (120, 90, 64, 48, 36, 28)
"""Of a text in the document, in bytes: as much as there is room for."""
LISTED = (3, 2, 1, 0)
"""Of a list in the document, entries: as many as there is room for."""
DIGITS = 5
"""Of seconds, rates, shares and prices in the document."""


def brief_report(answer: BriefAnswer) -> Report:
    """The answer as every format has it."""

    def text(look: Look) -> str:
        return brief_text(answer)

    return Report(
        title=answer.summary.script,
        facts=tuple(brief_lines(answer)),
        text=text,
        document=lambda: brief_document(answer),
        is_packed=True,
    )


def brief_text(answer: BriefAnswer) -> str:
    """Text of at most twelve lines, the verdict first."""
    return "".join(f"{cut_right(line, LINE_WIDTH)}\n" for line in brief_lines(answer))


def brief_lines(answer: BriefAnswer) -> Iterator[str]:
    """Lines of the answer: 9 at most, and 3 on what changed since the last run."""
    summary = answer.summary
    yield verdict(summary.verdict)
    if figures := ", ".join(key_figures(answer)):
        yield figures
    if fitting := would_fit(answer):
        yield f"would fit: {'; '.join(fitting)}"
    yield from (dear_line(answer, line) for line in answer.lines)
    if cause := diagnosis(answer):
        yield f"cause: {cause}"
    if broken := broken_limits(answer):
        yield f"limits: {'; '.join(broken)}"
    if uncertain := doubts(answer):
        more = len(uncertain) - MOST_DOUBTS
        listed = "; ".join(each.rstrip(".") for each in uncertain[:MOST_DOUBTS])
        yield f"not certain: {listed}{f'; {more} more' if more > 0 else ''}"
    if answer.since is not None:
        yield since_line(answer, answer.since)
        yield from map(changed_line, answer.since.lines[:2])


def key_figures(answer: BriefAnswer) -> Iterator[str]:
    """The time of the reported period, its rate, MFU and price, as far as they are known."""
    summary = answer.summary
    time, bill = summary.time, summary.thousand_steps
    if time is None:
        return
    span = time.range
    within = f" ({roughly(span.low_s)} to {roughly(span.high_s)})" if span else ""
    is_exact = span is None or span.basis == "measured"
    name = period_name(summary.period)
    yield f"{name} {format_seconds(time.step_s)}{'' if is_exact else within}"
    rates = time.throughput
    if rates is not None and rates.tokens_per_s is not None:
        yield f"{format_rate(rates.tokens_per_s)} tokens/s"
    elif rates is not None and rates.samples_per_s is not None:
        yield f"{format_rate(rates.samples_per_s)} samples/s"
    if (share := mfu_of(answer)) is not None:
        yield f"MFU {format_fraction(share)}"
    if bill.training is not None and bill.cost_usd is not None and not time.is_host:
        yield f"{format_usd(bill.cost_usd)} per 1,000 steps"


def mfu_of(answer: BriefAnswer) -> float | None:
    """Model FLOPs utilisation by the ledger's convention; None where it is not known, and before
    a step has ended.
    """
    time = answer.summary.time
    is_of_steps = answer.summary.steps or answer.summary.generates
    figure = None if time is None or not is_of_steps else time.utilisation
    return None if figure is None or figure.is_bytes else figure.fraction


def would_fit(answer: BriefAnswer) -> tuple[str, ...]:
    """Changes that make the run fit, or else the smallest chip that holds it."""
    if answer.changes:
        return tuple(map(change_text, answer.changes))
    chip = answer.smallest_chip
    if chip is None:
        return ()
    least = "" if answer.summary.verdict.claim == "does not fit" else "smallest GPU "
    return (f"{least}{chip.name} ({format_bytes(chip.total_memory_bytes)})",)


def change_text(result: ChangeResult) -> str:
    return f"{result.change.text} (peak {format_bytes(result.peak_reserved_bytes)})"


def dear_line(answer: BriefAnswer, line: DearLine) -> str:
    """A line's time, or its FLOPs where no time is known, and what it saves for the backward."""
    total = line.total
    cost = format_seconds(total.seconds) if answer.is_timed else format_flops(total.flops)
    saved = f"{format_bytes(total.bytes_saved)} saved" if total.bytes_saved else ""
    return f"  {cost:>10}  {saved:>17}  {cut_left(line.place, PLACE_WIDTH)}  {line.source}"


def diagnosis(answer: BriefAnswer) -> str:
    """The first cause, with its line and remedy; "" where there is none."""
    summary = answer.summary
    return next(diagnosis_sentences(summary.diagnoses[:1], summary.own_root), "")


def broken_limits(answer: BriefAnswer) -> tuple[str, ...]:
    """Limits that do not hold, or cannot be decided."""
    return tuple(sentence(finding) for finding in answer.findings if not finding.holds)


def doubts(answer: BriefAnswer) -> tuple[str, ...]:
    """What is not certain, or not known, about the figures."""
    return tuple(filter(None, _doubts(answer)))


def _doubts(answer: BriefAnswer) -> Iterator[str]:
    summary, time = answer.summary, answer.summary.time
    ending = summary.ending
    if summary.shortage is not None:
        yield f"figures are of what ran before memory ran out in {summary.shortage.moment}"
    elif ending.kind not in ("steps", "exit") or ending.message:
        yield f"the run ended early ({ending.kind}): {ending.message}".removesuffix(": ")
    elif not summary.steps and not summary.generates:
        yield "the script ended before a training step"
    yield from summary.caveats
    yield from departure_sentences(summary.placeholders, summary.own_root)[0]
    if summary.verdict.claim == "close":
        yield CLOSE_MEANS
    yield summary.no_time
    if uncounted := summary.coverage.uncounted:
        yield f"NOT counted: {', '.join(f'{each.op} x {each.count}' for each in uncounted)}"
    if time is not None and time.untimed:
        yield f"time unknown of {', '.join(f'{each.op} x {each.count}' for each in time.untimed)}"
    if branches := [each for each in summary.placeholders if each.use is Use.BRANCH]:
        places = dict.fromkeys(place_of(each, summary.own_root) for each in branches)
        yield f"branches on values that do not exist: {', '.join(places)}"
    if time is not None and time.range is not None and time.range.basis == "data sheet":
        yield "times by the data sheet: no rates of this chip are published"
    if summary.loading is not None:
        yield "the DataLoader is slower than the step"
    elif summary.script_work is not None and summary.script_work.is_slower:
        yield "the script's own code between operators is slower than the step"
    yield summary.unlike


def since_line(answer: BriefAnswer, since: SinceLastRun) -> str:
    """What changed in the whole."""
    last, summary = since.last, answer.summary
    was = f" ({last.command})" if last.command != summary.script else ""
    if not (since.changed or since.step_change_s or since.peak_change_bytes):
        return f"since the last run{was}: nothing changed"
    parts = []
    if since.step_change_s is not None and last.step_s:
        share = format_fraction(abs(since.step_change_s) / last.step_s)
        sign = "-" if since.step_change_s < 0 else "+"
        parts.append(f"step {signed_seconds(since.step_change_s)} ({sign}{share})")
    parts.append(f"peak {signed_bytes(since.peak_change_bytes)}")
    parts.append(f"{since.changed} line{'s' * (since.changed != 1)} changed")
    return f"since the last run{was}: {', '.join(parts)}"


def changed_line(line: ChangedLine) -> str:
    """What a line costs more or less than before."""
    figures = [
        signed_seconds(line.seconds_change)
        if line.seconds_change is not None
        else f"{'+' if line.flops_change >= 0 else '-'}{format_flops(abs(line.flops_change))}"
    ]
    if line.bytes_saved_change:
        figures.append(f"{signed_bytes(line.bytes_saved_change)} saved")
    return f"  {', '.join(figures)}  {cut_left(line.place, PLACE_WIDTH)}  {line.source}"


def signed_seconds(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def signed_bytes(size_bytes: int) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(abs(size_bytes))}"


# For programs ------------------------------------------------------------------------------------


def brief_document(answer: BriefAnswer) -> BriefDocument:
    """The answer with as much of its texts as a kilobyte holds."""
    for listed in LISTED:
        for room in ROOMS:
            document = _document(answer, room, listed)
            if len(packed(document)) <= MOST_BYTES:
                return document
    raise AssertionError("a brief document without texts is larger than a kilobyte")


def _document(answer: BriefAnswer, room: int, listed: int) -> BriefDocument:
    """The answer, each text in at most `room` bytes, and so many entries of each list."""
    summary, since = answer.summary, answer.since
    outcome, time = summary.verdict, summary.time
    span = None if time is None else time.range
    rates = None if time is None else time.throughput

    def shortened(texts: Sequence[str]) -> list[str]:
        return [short(text, room) for text in texts[:listed]]

    return BriefDocument(
        chip=short(outcome.chip, room),
        claim=outcome.claim,
        peak_reserved_bytes=outcome.needed_bytes if outcome.is_open else outcome.reserved_bytes,
        peak_allocated_bytes=outcome.peak_bytes,
        capacity_bytes=outcome.capacity_bytes,
        would_fit=shortened(would_fit(answer)),
        per=period_name(summary.period),
        step_s=None if time is None else rounded(time.step_s),
        low_s=None if span is None else rounded(span.low_s),
        high_s=None if span is None else rounded(span.high_s),
        tokens_per_s=None if rates is None else rounded(rates.tokens_per_s),
        mfu=rounded(mfu_of(answer)),
        thousand_steps_usd=rounded(summary.thousand_steps.cost_usd),
        lines=[
            DearLinePart(
                where=short(line.place, room, cut_left),
                source=short(line.source, room),
                seconds=rounded(line.total.seconds) if answer.is_timed else None,
                bytes_saved=line.total.bytes_saved,
            )
            for line in answer.lines[:listed]
        ],
        diagnosis=short(diagnosis(answer), 2 * room),
        broken_limits=shortened(broken_limits(answer)),
        doubts=shortened(doubts(answer)),
        since_last=None if since is None else _since_part(since, room, listed),
    )


def _since_part(since: SinceLastRun, room: int, listed: int) -> SinceLastRunPart:
    return SinceLastRunPart(
        command=short(since.last.command, room),
        seconds_change=rounded(since.step_change_s),
        bytes_change=since.peak_change_bytes,
        changed_lines=since.changed,
        lines=[
            ChangedLinePart(
                where=short(line.place, room, cut_left),
                present=line.present,
                seconds_change=rounded(line.seconds_change),
                bytes_saved_change=line.bytes_saved_change,
            )
            for line in since.lines[:listed]
        ],
    )


def short(text: str, room: int, cut: Callable[[str, int], str] = cut_right) -> str:
    """The text in at most so many bytes of JSON."""
    width = room
    shown = cut(printable(text), width)
    while len(json.dumps(shown)) - 2 > room and width > 0:
        width = width // 2
        shown = cut(printable(text), width)
    return shown


def rounded(number: float | None) -> float | None:
    """The number with as many digits as it is worth."""
    return None if number is None else float(f"{number:.{DIGITS}g}")
