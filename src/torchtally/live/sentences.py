"""Comparisons and events in sentences: of a monitored loop, and of a watched log."""

import os
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from torchtally.live.comparison import Deviation, StepComparison
from torchtally.live.observation import StepObservation
from torchtally.live.prediction import PredictedStep
from torchtally.live.record import SourceRecord
from torchtally.live.watcher import Happening, Watcher, WatchEvent
from torchtally.report.grid import wrap
from torchtally.units import format_bytes, format_count, format_fraction, format_seconds

WORDS = {
    Deviation.SLOWER: "steps take longer than predicted",
    Deviation.FASTER: "steps take less time than predicted",
    Deviation.MORE_MEMORY: "more memory is allocated than predicted",
    Deviation.LESS_MEMORY: "less memory is allocated than predicted",
}


# A comparison ------------------------------------------------------------------------------------


def both(
    show: Callable[[Any], str],
    measured: Any,
    predicted: Any,
    share: float | None = None,
    unknown: str = "unknown",
) -> str:
    """Measured and predicted: 135.2 ms, predicted 128.0 ms (+5.6 %)."""
    text = unknown if measured is None else show(measured)
    if predicted is not None:
        text += f", predicted {show(predicted)}"
    if share is not None:
        text += f" ({'+' if share >= 0 else ''}{format_fraction(share)})"
    return text


def time_text(comparison: StepComparison) -> str:
    return both(
        format_seconds, comparison.step_s, comparison.predicted.step_s, comparison.time_deviation
    )


def memory_text(comparison: StepComparison) -> str:
    measured, predicted = comparison.memory
    return both(format_bytes, measured, predicted, comparison.memory_deviation, "not measured")


def comparison_text(comparison: StepComparison) -> str:
    """Step 61.2 ms, predicted 54.0 ms (+13.3 %); MFU 33.8 %, predicted 38.3 %; peak memory ..."""
    parts = []
    if comparison.step_s is not None:
        parts.append(f"step {time_text(comparison)}")
    if comparison.mfu is not None:
        mfu = both(format_fraction, comparison.mfu, comparison.predicted.mfu)
        parts.append(f"MFU {mfu}")
    return "; ".join([*parts, f"peak memory {memory_text(comparison)}"])


def warning(kind: Deviation, comparison: StepComparison, figures: str) -> str:
    """What deviates, and beyond which error."""
    _, error = comparison.of(kind)
    assert error is not None
    return f"warning: {WORDS[kind]}, by more than {format_fraction(error)}: {figures}"


def prediction_text(predicted: PredictedStep) -> str:
    """The sentence that a watch begins with."""
    on = f" for {predicted.chip}" if predicted.chip else ""
    figures = []
    if predicted.step_s is not None:
        figures.append(f"step {format_seconds(predicted.step_s)}")
    if predicted.tokens_per_s is not None:
        figures.append(f"{rate_text(predicted.tokens_per_s)} tokens/s")
    if predicted.mfu is not None:
        figures.append(f"MFU {format_fraction(predicted.mfu)}")
    if predicted.peak_bytes is not None:
        figures.append(f"peak memory {format_bytes(predicted.peak_bytes)}")
    return f"Predicted by {predicted.file}{on}: {', '.join(figures) or 'nothing of a step'}."


def rate_text(per_s: float) -> str:
    return format_count(round(per_s))


# An event ----------------------------------------------------------------------------------------


def event_text(event: WatchEvent) -> str:
    """One line, but for notes."""
    step, comparison = step_name(event.observation), event.comparison
    match event.what:
        case Happening.STEP:
            return f"{step}: {', '.join(figures_of(event)) or 'time unknown'}"
        case Happening.DEVIATES:
            assert event.deviation is not None
            figures = f"step {time_text(comparison)}"
            if event.deviation.is_memory:
                figures = f"peak memory {memory_text(comparison)}"
            return warning(event.deviation, comparison, figures)
        case Happening.AGREED:
            return f"{step}: back to the prediction, {time_text(comparison)}"
        case Happening.LATE:
            return (
                f"late: nothing for {format_seconds(event.waited_s or 0.0)} since {step}, "
                f"usually {format_seconds(event.usual_s or 0.0)}"
            )
        case Happening.ENDED:
            is_timed = comparison.step_s is not None
            return f"the training has ended{f': {time_text(comparison)} on average' * is_timed}"
        case Happening.NOTE:
            return event.text


def step_name(seen: StepObservation) -> str:
    rank = "" if seen.rank is None else f"rank {seen.rank}, "
    if seen.is_profiled:
        return f"{rank}profiled step"
    return f"{rank}step {'?' if seen.step is None else seen.step}"


def figures_of(event: WatchEvent) -> Iterator[str]:
    """Figures, as many as are known; the prediction of the others is in the first sentence."""
    if event.comparison.step_s is not None:
        yield time_text(event.comparison)
    if event.slow is not None:
        yield f"{event.slow:.1f} times the median"
        return
    if event.tokens_per_s is not None and not event.observation.is_profiled:
        yield f"{rate_text(event.tokens_per_s)} tokens/s"
    if event.mfu is not None:
        yield f"MFU {format_fraction(event.mfu)}"
    if event.observation.idle_share is not None:
        yield f"{format_fraction(event.observation.idle_share)} idle"


def heading_of(event: WatchEvent) -> str:
    """The file that an event is of, where several are followed."""
    return os.path.normpath(event.file or event.source)


# The summary -------------------------------------------------------------------------------------


def summary_text(watcher: Watcher, width: int) -> str:
    """Every log and worker: what was measured, and what was predicted."""
    lines = []
    for record in watcher.records.values():
        lines.append(f"{record.source}: {steps_seen(record)}")
        lines += [line for sentence in sentences(record) for line in wrap(f"{sentence}.", width)]
    return "\n".join(lines or ["No step was seen."]) + "\n"


def sentences(record: SourceRecord) -> Iterator[str]:
    total, steps_s = record.total, record.steps.steps_s
    predicted = total.predicted
    if total.step_s is not None:
        text = f"Step time {time_text(total)}"
        if len(steps_s) > 1:
            least, most = format_seconds(min(steps_s)), format_seconds(max(steps_s))
            text += f"; the median of {least} to {most}"
        yield text
    if record.tokens_per_s:
        tokens_per_s = both(rate_text, median(record.tokens_per_s), predicted.tokens_per_s)
        yield f"{tokens_per_s} tokens/s"
    mfu = []
    if total.mfu is not None:
        mfu.append(f"{both(format_fraction, total.mfu, predicted.mfu)} by the predicted products")
    if record.logged_mfu:
        mfu.append(f"{format_fraction(median(record.logged_mfu))} as the training reports")
    if mfu:
        yield f"MFU {'; '.join(mfu)}"
    if total.memory[0] is not None:
        kind = "reserved" if total.peak_bytes is None else "allocated"
        yield f"Peak memory {kind} {memory_text(total)}"
    if record.slow or record.late:
        yield f"Slow steps: {record.slow}. Late steps: {record.late}"


def steps_seen(record: SourceRecord) -> str:
    count = f"{record.observed} observation{'s' * (record.observed != 1)}"
    last = None if record.last is None else record.last.step
    if record.first_step is None or last is None:
        return count
    return f"{count}, steps {record.first_step} to {last}"
