"""What became of a step: its result, or why it must not be taken."""

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from torchtally.errors import TallyError


class Outcome(StrEnum):
    """What became of a step."""

    UPDATED = "updated"
    NONFINITE = "skipped: not finite"
    SPIKE = "skipped: loss spike"
    SCALE_LOWERED = "skipped: loss scale lowered"
    """float16's gradients overflowed, which is how the loss scale is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step was: read from the device once."""

    loss: float
    """Mean over all targets of the batch, in float32."""
    grad_norm: float
    """Before clipping."""
    outcome: Outcome
    is_spike: bool
    micro_batch: int
    """Rows at a time, the last time maybe fewer."""
    micro_batches: int
    loss_scale: float
    """That this step's losses were scaled by; 1 where none are."""
    lowered_from: int | None
    """The micro-batch that the step began with, where memory did not suffice for it."""

    @property
    def is_skipped(self) -> bool:
        return self.outcome is not Outcome.UPDATED


class StepError(TallyError):
    """A step that must not be taken. Weights and optimizer state are as before it.

    `batch` is this rank's (inputs, targets), to see what did it and to do it again.
    """

    exit_code = 4
    """A sweep knows by it that a training diverged."""

    def __init__(self, text: str, *, step: int, batch: tuple[Tensor, Tensor]) -> None:
        super().__init__(text)
        self.step = step
        self.batch = batch


class NonFiniteError(StepError):
    """A loss or a gradient is inf or nan."""


class SpikeError(StepError):
    """The loss is far above those before it."""
