"""A training step as named values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtally.train.logs import names
from torchtally.train.logs.log import LogValue


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One training step. None is unknown, and is not logged."""

    loss: float
    learning_rate: float
    tokens: int
    """Trained on so far."""
    tokens_per_s: float
    step_s: float
    wait_s: float
    skipped_steps: int = 0
    grad_norm: float | None = None
    epoch: float | None = None
    mfu: float | None = None
    """A fraction; logged in percent, as is usual."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Measured, by category."""

    def values(self) -> dict[str, LogValue]:
        values: dict[str, LogValue | None] = {
            names.LOSS: self.loss,
            names.GRAD_NORM: self.grad_norm,
            names.LEARNING_RATE: self.learning_rate,
            names.EPOCH: self.epoch,
            names.TOKENS: self.tokens,
            names.TOKENS_PER_S: self.tokens_per_s,
            names.MFU: None if self.mfu is None else 100 * self.mfu,
            names.STEP_S: self.step_s,
            names.WAIT_S: self.wait_s,
            names.SKIPPED_STEPS: self.skipped_steps,
            **{names.memory_name(category): size for category, size in self.memory_bytes.items()},
        }
        return {name: value for name, value in values.items() if value is not None}
