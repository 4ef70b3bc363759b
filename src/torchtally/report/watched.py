"""What `tally watch` prints: a line for each step, warnings, and a summary at the end."""

import json
import os
from collections.abc import Iterator
from statistics import median
from typing import Protocol

from torchtally.report.document import Document, identifier, pick
from torchtally.report.grid import wrap
from torchtally.units import format_bytes, format_count, format_fraction, format_seconds
from torchtally.watch.expectation import ExpectedStep
from torchtally.watch.watcher import Happening, SourceRecord, Watcher, WatchEvent, memory_of

FIGURES = ("step_s", "tokens_per_s", "mfu", "mfu_convention")
STAYING = frozenset(Happening) - {Happening.STEP}
"""What is not drawn over by the next line on a terminal."""


def parted_text(parted: float) -> str:
    """+5.6 %."""
    return f"{'+' if parted >= 0 else ''}{format_fraction(parted)}"


def more_or_less(parted: float) -> str:
    return f"{format_fraction(abs(parted))} {'more' if parted >= 0 else 'less'} than predicted"


def expected_text(expected: ExpectedStep) -> str:
    """The sentence that a watch begins with."""
    on = "" if expected.chip is None else f" for {expected.chip}"
    figures = []
    if expected.step_s is not None:
        figures.append(f"step {format_seconds(expected.step_s)}")
    if expected.tokens_per_s is not None:
        figures.append(f"{format_count(round(expected.tokens_per_s))} tokens/s")
    if expected.mfu is not None:
        figures.append(f"MFU {format_fraction(expected.mfu)}")
    if expected.peak_bytes is not None:
        figures.append(f"peak memory {format_bytes(expected.peak_bytes)}")
    return f"Predicted by {expected.file}{on}: {', '.join(figures) or 'nothing of a step'}."


def event_text(event: WatchEvent) -> str:
    """One line, but for notes."""
    match event.what:
        case Happening.STEP:
            return f"{step_name(event)}: {', '.join(figures_of(event)) or 'time unknown'}"
        case Happening.PARTED:
            return f"warning: {parted_sentence(event)}"
        case Happening.AGREED:
            return f"{step_name(event)}: back to the prediction, {beside(event)}"
        case Happening.LATE:
            waited_s, usual_s = event.waited_s or 0.0, event.usual_s or 0.0
            return (
                f"late: nothing for {format_seconds(waited_s)} since {step_name(event)}, "
                f"usually {format_seconds(usual_s)}"
            )
        case Happening.ENDED:
            mean = "" if event.step_s is None else f": {beside(event)} on average"
            return f"the training has ended{mean}"
        case Happening.NOTE:
            return event.text


def step_name(event: WatchEvent) -> str:
    observation = event.observation
    rank = "" if observation.rank is None else f"rank {observation.rank}, "
    if observation.is_profiled:
        return f"{rank}profiled step"
    return f"{rank}step {'?' if observation.step is None else observation.step}"


def beside(event: WatchEvent) -> str:
    """135.2 ms, predicted 128.0 ms (+5.6 %)."""
    text = "time unknown" if event.step_s is None else format_seconds(event.step_s)
    expected_s = None if event.expected is None else event.expected.step_s
    if expected_s is None or event.parted is None:
        return text
    return f"{text}, predicted {format_seconds(expected_s)} ({parted_text(event.parted)})"


def figures_of(event: WatchEvent) -> Iterator[str]:
    """Figures, as many as are known; the prediction of the others is in the first sentence."""
    observation = event.observation
    if event.step_s is not None:
        yield beside(event)
    if event.slow is not None:
        yield f"{event.slow:.1f} times the median"
        return
    if event.tokens_per_s is not None and not observation.is_profiled:
        yield f"{format_count(round(event.tokens_per_s))} tokens/s"
    mfu = mfu_of(event)
    if mfu is not None:
        yield f"MFU {format_fraction(mfu)}"
    if observation.idle_share is not None:
        yield f"{format_fraction(observation.idle_share)} idle"


def mfu_of(event: WatchEvent) -> float | None:
    """MFU by the convention of the prediction where there is one, else as it was logged."""
    own = None if event.expected is None else event.expected.mfu_at(event.step_s)
    return event.observation.mfu if own is None else own


def parted_sentence(event: WatchEvent) -> str:
    assert event.expected is not None, event
    parted = event.parted or 0.0
    if event.is_memory:
        observation, expected = event.observation, event.expected
        is_peak = observation.peak_bytes is not None
        measured = observation.peak_bytes if is_peak else observation.reserved_bytes
        predicted = expected.peak_bytes if is_peak else expected.reserved_bytes
        return (
            f"peak memory {format_bytes(measured or 0)}, {more_or_less(parted)} "
            f"({format_bytes(predicted or 0)})"
        )
    return (
        f"steps take {format_seconds(event.step_s or 0.0)}, {more_or_less(parted)} "
        f"({format_seconds(event.expected.step_s or 0.0)})"
    )


# The summary -------------------------------------------------------------------------------------


def summary_text(watcher: Watcher, width: int) -> str:
    """Every log and worker: what was measured, beside what was predicted."""
    lines = []
    for record in watcher.records.values():
        lines.append(f"{record.source}: {steps_seen(record)}")
        lines += [line for sentence in sentences(record) for line in wrap(sentence, width)]
    return "\n".join(lines or ["No step was seen."]) + "\n"


def sentences(record: SourceRecord) -> Iterator[str]:
    expected = record.expected
    if record.median_s is not None:
        text = f"Step time {format_seconds(record.median_s)}"
        if len(record.steps_s) > 1:
            text += (
                f", the median of {format_seconds(min(record.steps_s))} to "
                f"{format_seconds(max(record.steps_s))}"
            )
        if record.parted is not None and expected is not None and expected.step_s is not None:
            text += f"; predicted {format_seconds(expected.step_s)} ({parted_text(record.parted)})"
        yield f"{text}."
    if record.tokens_per_s:
        text = f"{format_count(round(median(record.tokens_per_s)))} tokens/s"
        if expected is not None and expected.tokens_per_s is not None:
            text += f"; predicted {format_count(round(expected.tokens_per_s))}"
        yield f"{text}."
    own_mfu = None if expected is None else expected.mfu_at(record.median_s)
    parts = []
    if own_mfu is not None and expected is not None and expected.mfu is not None:
        parts.append(
            f"{format_fraction(own_mfu)} by the predicted products, predicted "
            f"{format_fraction(expected.mfu)}"
        )
    if record.logged_mfu:
        parts.append(f"{format_fraction(median(record.logged_mfu))} as the training reports")
    if parts:
        yield f"MFU {'; '.join(parts)}."
    measured, predicted = memory_of(record)
    if measured is not None:
        kind = "allocated" if record.peak_bytes is not None else "reserved"
        text = f"Peak memory {format_bytes(measured)} {kind}"
        if predicted and record.memory_parted is not None:
            text += f"; predicted {format_bytes(predicted)} ({parted_text(record.memory_parted)})"
        yield f"{text}."
    if record.slow or record.late:
        yield f"Slow steps: {record.slow}. Late steps: {record.late}."


def steps_seen(record: SourceRecord) -> str:
    count = f"{record.observed} observation{'s' * (record.observed != 1)}"
    last = None if record.last is None else record.last.step
    if record.first_step is None or last is None:
        return count
    return f"{count}, steps {record.first_step} to {last}"


# For programs ------------------------------------------------------------------------------------


def json_line(document: Document) -> str:
    return json.dumps({"schema": identifier("watch"), **document}) + "\n"


def beginning_document(path: str, tolerance: float, expected: ExpectedStep | None) -> Document:
    """The first line."""
    return {
        "kind": "watch",
        "file": path,
        "tolerance": tolerance,
        "predicted": predicted_document(expected),
    }


def predicted_document(expected: ExpectedStep | None) -> Document | None:
    if expected is None:
        return None
    figures = pick(expected, "file", "chip", "ranks", "tokens", *FIGURES)
    return {**figures, **peaks_document(expected)}


class PeakMemory(Protocol):
    """What is known of memory."""

    @property
    def peak_bytes(self) -> int | None: ...

    @property
    def reserved_bytes(self) -> int | None: ...


def peaks_document(peaks: PeakMemory) -> Document:
    """What an observation, a log or a prediction says of memory."""
    return {
        "peak_allocated_bytes": peaks.peak_bytes,
        "peak_reserved_bytes": peaks.reserved_bytes,
    }


def event_document(event: WatchEvent) -> Document:
    """What happened. Numbers that are unknown are null."""
    document: Document = {"kind": str(event.what), "log": event.source}
    if event.what is Happening.NOTE:
        return {**document, "text": event.text}
    seen, expected = event.observation, event.expected
    return {
        **document,
        "file": event.file or None,
        **pick(seen, "step", "rank"),
        **pick(event, "step_s"),
        "step_s_from": None if event.origin is None else str(event.origin),
        **pick(event, "tokens_per_s"),
        "mfu": mfu_of(event),
        "logged_mfu": seen.mfu,
        **peaks_document(seen),
        **pick(seen, "idle_share"),
        "predicted": None
        if expected is None
        else {**pick(expected, "step_s", "tokens_per_s", "mfu"), **peaks_document(expected)},
        **pick(event, "parted", "is_memory", "slow", "waited_s", "usual_s"),
    }


def summary_document(record: SourceRecord) -> Document:
    """The last line of each log and worker."""
    expected = record.expected
    return {
        "kind": "summary",
        "log": record.source,
        **pick(record, "observed", "first_step"),
        "last_step": None if record.last is None else record.last.step,
        "step_s": record.median_s,
        "least_step_s": min(record.steps_s, default=None),
        "most_step_s": max(record.steps_s, default=None),
        "tokens_per_s": median(record.tokens_per_s) if record.tokens_per_s else None,
        "mfu": None if expected is None else expected.mfu_at(record.median_s),
        "logged_mfu": median(record.logged_mfu) if record.logged_mfu else None,
        **peaks_document(record),
        **pick(record, "slow", "late", "parted", "memory_parted"),
        "predicted": predicted_document(expected),
    }


def place_of(event: WatchEvent) -> str:
    """The file that an event is of, for a heading where several are followed."""
    return os.path.normpath(event.file or event.source)
