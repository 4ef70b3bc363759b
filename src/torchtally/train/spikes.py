"""Loss spikes: losses far above the recent ones, measured by their spread.

    m  median of the recent losses      s  1.4826 * median |loss - m|, a normal's deviation

Both are medians over the window, so a spike among the recent losses affects neither, and a
permanent new level is the median after half a window.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from sys import float_info
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from torchtally.errors import UsageError, check_choice

OnSpike = Literal["note", "skip", "stop"]

NORMAL_DEVIATIONS = 1.4826
"""1 / Φ⁻¹(3/4): a normal's standard deviation in median absolute deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeConfig:
    """A loss is a spike above m + max(deviations * s, least_rise * |m|)."""

    on_spike: OnSpike = "note"
    """What the step does: update anyway, skip the batch, or stop the run."""
    deviations: float = 6.0
    least_rise: float = 0.05
    """As a fraction of the median: a smooth curve has a narrow spread, but no spikes."""
    window_steps: int = 128
    warmup_steps: int = 100
    """No spikes are detected in the first steps."""
    least_steps: int = 16
    """Nor before the window has this many losses."""

    def __post_init__(self) -> None:
        check_choice("on_spike: unknown value", self.on_spike, get_args(OnSpike))
        for name in ("deviations", "least_rise"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name}: expected 0 or more, got {value}.")
        if not 2 <= self.least_steps <= self.window_steps:
            raise UsageError(
                f"least_steps: expected 2 to {self.window_steps} (window_steps), got "
                f"{self.least_steps}."
            )
        if self.warmup_steps < 0:
            raise UsageError(f"warmup_steps: expected 0 or more, got {self.warmup_steps}.")


class SpikeState(msgspec.Struct, frozen=True):
    """The state of the detector, for checkpoints; JSON preserves floats exactly."""

    steps: int
    """Steps with a finite loss."""
    recent_losses: tuple[Annotated[float, Meta(ge=-float_info.max, le=float_info.max)], ...]
    """Oldest first."""

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "SpikeState":
        """Raises UsageError for anything but a state."""
        try:
            return msgspec.convert(saved, cls)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"The saved state of the spike detector is damaged: {error}."
            ) from error

    def after(self, loss: float, window_steps: int) -> "SpikeState":
        """The state after one more loss, spike or not."""
        return SpikeState(self.steps + 1, (*self.recent_losses, loss)[-window_steps:])


def spike_limit(losses: Sequence[float], config: SpikeConfig) -> float:
    """The largest next loss that is not a spike."""
    middle = median(losses)
    deviation = NORMAL_DEVIATIONS * median(abs(loss - middle) for loss in losses)
    return middle + max(config.deviations * deviation, config.least_rise * abs(middle))


class SpikeDetector:
    """Detects spikes among losses.

    NaN and inf losses are ignored; all others count as recent losses, including spikes.
    """

    def __init__(self, config: SpikeConfig, state: SpikeState | None = None) -> None:
        self.config = config
        self.state = state or SpikeState(0, ())

    def limit(self) -> float:
        """The largest next loss that is not a spike; inf while it is too early to tell."""
        state, config = self.state, self.config
        is_early = state.steps < config.warmup_steps
        if is_early or len(state.recent_losses) < config.least_steps:
            return math.inf
        return spike_limit(state.recent_losses, config)

    def sees_spike(self, loss: float) -> bool:
        """Whether this loss is a spike; adds it to the recent ones."""
        if not math.isfinite(loss):
            return False
        limit = self.limit()
        self.state = self.state.after(loss, self.config.window_steps)
        return loss > limit
