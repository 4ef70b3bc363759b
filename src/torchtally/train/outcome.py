"""The result of a step, or the error that prevents it."""

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from torchtally.errors import TallyError


class Outcome(StrEnum):
    """What happened to the update of a step."""

    UPDATED = "updated"
    NONFINITE = "skipped: NaN or inf"
    SPIKE = "skipped: loss spike"
    SCALE_LOWERED = "skipped: loss scale lowered"
    """float16 gradients overflowed, which is how the loss scale is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The numbers of a step, read from the device once."""

    loss: float
    """Mean over all targets of the batch, in float32."""
    grad_norm: float
    """Before clipping."""
    outcome: Outcome
    is_spike: bool
    micro_batch: int
    """Rows per pass; the last may have fewer."""
    micro_batches: int
    loss_scale: float
    """The loss scale of this step; 1 without loss scaling."""
    lowered_from: int | None
    """The micro-batch before it was lowered after out of memory; None if it was not."""

    @property
    def is_skipped(self) -> bool:
        return self.outcome is not Outcome.UPDATED


class StepError(TallyError):
    """A step that was not taken: weights and optimizer state are unchanged.

    `batch` is this rank's (inputs, targets), for reproducing it.
    """

    exit_code = 4
    """Tells a sweep that the training diverged."""

    def __init__(self, text: str, *, step: int, batch: tuple[Tensor, Tensor]) -> None:
        super().__init__(text)
        self.step = step
        self.batch = batch


class NonFiniteError(StepError):
    """NaN or inf loss or gradient."""


class SpikeError(StepError):
    """The loss is far above the recent ones."""
