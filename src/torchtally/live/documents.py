"""What `tally watch --json` writes: lines that are documents."""

from statistics import median

from torchtally.live.prediction import PredictedStep
from torchtally.live.record import SourceRecord
from torchtally.live.watcher import Happening, WatchEvent
from torchtally.report.documents.watch import PredictionPart, WatchDocument
from torchtally.report.keys import dumps, filled


def json_line(document: WatchDocument) -> str:
    return dumps(document, indent=None)


def prediction_part(predicted: PredictedStep) -> PredictionPart | None:
    """Null without a prediction."""
    return filled(PredictionPart, predicted) if predicted.file else None


def watch_document(path: str, tolerance: float, predicted: PredictedStep) -> WatchDocument:
    """The first line."""
    return WatchDocument(
        kind="watch", file=path, tolerance=tolerance, predicted=prediction_part(predicted)
    )


def event_document(event: WatchEvent) -> WatchDocument:
    """What happened. Numbers that are unknown are null."""
    if event.what is Happening.NOTE:
        return WatchDocument(kind=event.what, log=event.source, text=event.text)
    seen, comparison = event.observation, event.comparison
    predicted = comparison.predicted
    is_memory = event.deviation is not None and event.deviation.is_memory
    return WatchDocument(
        kind=event.what,
        log=event.source,
        file=event.file or None,
        step=seen.step,
        rank=seen.rank,
        step_s=comparison.step_s,
        step_s_from=event.origin,
        tokens_per_s=event.tokens_per_s,
        mfu=event.mfu,
        logged_mfu=seen.mfu,
        peak_bytes=seen.peak_bytes,
        reserved_bytes=seen.reserved_bytes,
        idle_share=seen.idle_share,
        predicted=PredictionPart(
            step_s=predicted.step_s,
            tokens_per_s=predicted.tokens_per_s,
            mfu=predicted.mfu,
            peak_bytes=predicted.peak_bytes,
            reserved_bytes=predicted.reserved_bytes,
        )
        if predicted.file
        else None,
        deviation=comparison.memory_deviation if is_memory else comparison.time_deviation,
        is_memory=is_memory,
        slow=event.slow,
        waited_s=event.waited_s,
        usual_s=event.usual_s,
    )


def summary_document(record: SourceRecord) -> WatchDocument:
    """The last line of each log and worker."""
    total, steps_s = record.total, record.steps.steps_s
    return WatchDocument(
        kind="summary",
        log=record.source,
        observed=record.observed,
        first_step=record.first_step,
        last_step=None if record.last is None else record.last.step,
        step_s=total.step_s,
        least_step_s=min(steps_s, default=None),
        most_step_s=max(steps_s, default=None),
        tokens_per_s=median(record.tokens_per_s) if record.tokens_per_s else None,
        mfu=total.mfu,
        logged_mfu=median(record.logged_mfu) if record.logged_mfu else None,
        peak_bytes=total.peak_bytes,
        reserved_bytes=total.reserved_bytes,
        slow=record.slow,
        late=record.late,
        deviation=total.time_deviation,
        memory_deviation=total.memory_deviation,
        predicted=prediction_part(total.predicted),
    )
