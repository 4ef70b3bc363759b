"""What is predicted of every step, and how far off such predictions are."""

import os
from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.ledger import Ledger
from torchtally.trace import Trace
from torchtally.views.model_summary import ModelSummary
from torchtally.views.summary import ALLOCATOR_ERROR
from torchtally.views.time_range import time_range
from torchtally.watch.expectation import ExpectedStep, expected_step, ledger_of

Source = str | os.PathLike[str] | Trace | Ledger | ModelSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """A predicted step with the error of its class; None is unknown."""

    step: ExpectedStep
    time_error: float | None
    """A fraction of the step's time: typical for predictions of this kind."""
    basis: str = ""
    """"data sheet", "calibrated" or "measured"."""
    memory_error: float = ALLOCATOR_ERROR

    def within(self, tolerance: float | None) -> "StepPrediction":
        """The same with a tolerance of the caller's for time and memory, where there is one."""
        if tolerance is None:
            return self
        return StepPrediction(
            step=self.step, time_error=tolerance, basis=self.basis, memory_error=tolerance
        )


def prediction_of(source: Source, gpu: str | None = None) -> StepPrediction:
    """That of a trace (by its file), a ledger or a summary; `gpu` times a trace on another chip.

    Raises UsageError for anything else, and TraceFileError for a file that is no trace.
    """
    match source:
        case Ledger():
            return of_ledger(source, "a ledger")
        case ModelSummary():
            return of_ledger(source.ledger, f"a summary of {source.root.facts.class_name}")
        case Trace():
            return of_ledger(ledger_of(source, gpu), f"a trace of {source.script}")
        case str() | os.PathLike():
            path = os.fspath(source)
            return of_ledger(ledger_of(Trace.load(path), gpu, path), path)
    raise UsageError(
        f"monitor: expected a trace (its file, as `tally run` writes it), a ledger, a summary or a "
        f"torch.nn.Module, got {type(source).__name__}."
    )


def of_ledger(ledger: Ledger, name: str) -> StepPrediction:
    """That of the reported step, and of the whole run's memory."""
    likely_range = time_range(ledger)
    return StepPrediction(
        step=expected_step(ledger, name),
        time_error=None if likely_range is None else likely_range.error,
        basis="" if likely_range is None else likely_range.basis,
    )
