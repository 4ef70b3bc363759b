"""What is predicted of every step, and how far off such predictions are."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.live.observation import positive
from torchtally.timing.targets import known_roofline, roofline
from torchtally.trace import Trace
from torchtally.trace.peers import load_peers
from torchtally.views.model_summary import ModelSummary
from torchtally.views.summary import ALLOCATOR_ERROR, reserved_bytes_of
from torchtally.views.throughput import throughput
from torchtally.views.time_range import time_range
from torchtally.views.utilisation import model_utilisation

Source = str | os.PathLike[str] | Trace | Ledger | ModelSummary

STEP_S = "train/step_s"
PEAK = "memory/peak_bytes"
"""Names of values in the log of `tally train`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """A step's figures, and the error of such predictions. None is unknown."""

    file: str = ""
    chip: str | None = None
    step_s: float | None = None
    tokens: int | None = None
    """Of a step, of all ranks."""
    ranks: int = 1
    mfu: float | None = None
    mfu_convention: str = ""
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    time_error: float | None = None
    """A fraction of the step's time: typical for predictions of this kind."""
    memory_error: float = ALLOCATOR_ERROR

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.step_s if self.tokens and self.step_s else None

    def mfu_at(self, step_s: float | None) -> float | None:
        """MFU of a step that takes so long: the same products, counted by the same convention."""
        if self.mfu is None or not self.step_s or not step_s:
            return None
        return self.mfu * self.step_s / step_s

    def within(self, tolerance: float | None) -> "PredictedStep":
        """The same with a tolerance of the caller's for time and memory, where there is one."""
        if tolerance is None:
            return self
        return replace(self, time_error=tolerance, memory_error=tolerance)


UNPREDICTED = PredictedStep()
"""Of which nothing is known."""


def prediction_of(source: Source, gpu: str | None = None) -> PredictedStep:
    """Prediction of a trace (by its file, beside which are other ranks'), a ledger or a summary;
    `gpu` times a trace on another chip.

    Raises UsageError for anything else, UnknownChipError, and TraceFileError for a file that is no
    trace.
    """
    match source:
        case Ledger():
            return predicted_step(source, "a ledger")
        case ModelSummary():
            return predicted_step(source.ledger, f"a summary of {source.root.facts.class_name}")
        case Trace():
            return predicted_step(_ledger_of(source, gpu), f"a trace of {source.script}")
        case str() | os.PathLike():
            path = os.fspath(source)
            return predicted_step(_ledger_of(Trace.load(path), gpu, path), path)
    raise UsageError(
        f"monitor: expected a trace (its file, as `tally run` writes it), a ledger, a summary or a "
        f"torch.nn.Module, got {type(source).__name__}."
    )


def _ledger_of(trace: Trace, gpu: str | None, path: str = "") -> Ledger:
    timing = known_roofline(trace.chip) if gpu is None else roofline(gpu)
    return account(trace, roofline=timing, peers=load_peers(trace, path) if path else ())


def predicted_step(ledger: Ledger, file: str) -> PredictedStep:
    """The ledger's reported step, and the memory of the whole run."""
    speed, utilisation, likely = throughput(ledger), model_utilisation(ledger), time_range(ledger)
    steps = ledger.reported_period.steps
    tokens = None
    if speed is not None and speed.tokens is not None:
        tokens = speed.tokens.size * (speed.data_parallel_ranks or 1) // speed.steps
    return PredictedStep(
        file=file,
        chip=ledger.trace.chip if ledger.roofline is None else ledger.roofline.chip.name,
        step_s=ledger.step_s / steps if ledger.step_s and steps else None,
        tokens=tokens,
        ranks=max(ledger.trace.world.size, 1),
        mfu=None if utilisation is None else utilisation.fraction,
        mfu_convention="" if utilisation is None else utilisation.convention,
        peak_bytes=ledger.memory.peak_bytes if ledger.knows_memory else None,
        reserved_bytes=reserved_bytes_of(ledger) if ledger.knows_memory else None,
        time_error=None if likely is None else likely.error,
    )


def logged_prediction(values: Mapping[str, Any], file: str) -> PredictedStep:
    """Prediction that `tally train` wrote into its log before the first step."""
    step_s, peak = positive(values.get(STEP_S)), positive(values.get(PEAK))
    if step_s is None and peak is None:
        return UNPREDICTED
    return PredictedStep(file=file, step_s=step_s, peak_bytes=None if peak is None else round(peak))
