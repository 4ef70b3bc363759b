"""What `tally watch --json` writes: lines of the schema "watch"."""

import json
from statistics import median

from torchtally.live.comparison import StepComparison
from torchtally.live.observation import StepObservation
from torchtally.live.prediction import PredictedStep
from torchtally.live.record import SourceRecord
from torchtally.live.watcher import Happening, WatchEvent
from torchtally.report.document import Document, identifier, pick

PREDICTION = ("file", "chip", "ranks", "tokens", "mfu_convention")


def json_line(document: Document) -> str:
    return json.dumps({"schema": identifier("watch"), **document}) + "\n"


def prediction_document(predicted: PredictedStep, *names: str) -> Document | None:
    """None without a prediction."""
    if not predicted.file:
        return None
    return {**pick(predicted, *names, "step_s", "tokens_per_s", "mfu"), **peaks(predicted)}


def peaks(of: StepObservation | StepComparison | PredictedStep) -> Document:
    """What an observation, a log or a prediction says of memory."""
    return {"peak_allocated_bytes": of.peak_bytes, "peak_reserved_bytes": of.reserved_bytes}


def watch_document(path: str, tolerance: float, predicted: PredictedStep) -> Document:
    """The first line."""
    return {
        "kind": "watch",
        "file": path,
        "tolerance": tolerance,
        "predicted": prediction_document(predicted, *PREDICTION),
    }


def event_document(event: WatchEvent) -> Document:
    """What happened. Numbers that are unknown are null."""
    document: Document = {"kind": str(event.what), "log": event.source}
    if event.what is Happening.NOTE:
        return {**document, "text": event.text}
    seen, comparison = event.observation, event.comparison
    is_memory = event.deviation is not None and event.deviation.is_memory
    return {
        **document,
        "file": event.file or None,
        **pick(seen, "step", "rank"),
        **pick(comparison, "step_s"),
        "step_s_from": None if event.origin is None else str(event.origin),
        **pick(event, "tokens_per_s", "mfu"),
        "logged_mfu": seen.mfu,
        **peaks(seen),
        **pick(seen, "idle_share"),
        "predicted": prediction_document(comparison.predicted),
        "deviation": comparison.memory_deviation if is_memory else comparison.time_deviation,
        "is_memory": is_memory,
        **pick(event, "slow", "waited_s", "usual_s"),
    }


def summary_document(record: SourceRecord) -> Document:
    """The last line of each log and worker."""
    total, steps_s = record.total, record.steps.steps_s
    return {
        "kind": "summary",
        "log": record.source,
        **pick(record, "observed", "first_step"),
        "last_step": None if record.last is None else record.last.step,
        **pick(total, "step_s"),
        "least_step_s": min(steps_s, default=None),
        "most_step_s": max(steps_s, default=None),
        "tokens_per_s": median(record.tokens_per_s) if record.tokens_per_s else None,
        **pick(total, "mfu"),
        "logged_mfu": median(record.logged_mfu) if record.logged_mfu else None,
        **peaks(total),
        **pick(record, "slow", "late"),
        "deviation": total.time_deviation,
        **pick(total, "memory_deviation"),
        "predicted": prediction_document(total.predicted, *PREDICTION),
    }
