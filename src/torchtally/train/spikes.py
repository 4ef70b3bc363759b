"""Loss spikes: losses far above the recent ones, measured by their spread.

    m  median of the recent losses      s  1.4826 * median |loss - m|, a normal's deviation

Both are medians over the window, so a spike among the recent losses affects neither, and a
permanent new level is the median after half a window.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, get_args

from torchtally.errors import UsageError

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
        if self.on_spike not in get_args(OnSpike):
            raise UsageError(
                f"on_spike: unknown value {self.on_spike!r}. Choose one of "
                f"{', '.join(get_args(OnSpike))}."
            )
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


@dataclass(frozen=True, slots=True)
class SpikeState:
    """The state of the detector, for checkpoints."""

    steps: int = 0
    """Steps with a finite loss."""
    recent_losses: tuple[float, ...] = ()
    """Oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which preserves floats exactly."""
        return {"steps": self.steps, "recent_losses": list(self.recent_losses)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "SpikeState":
        """Raises UsageError for anything that `to_dict` does not write."""
        try:
            steps, losses = saved["steps"], tuple(float(loss) for loss in saved["recent_losses"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"The saved state of the spike detector is damaged: {error!r}.") from (
                error
            )
        if not isinstance(steps, int) or not all(map(math.isfinite, losses)):
            raise UsageError("The saved state of the spike detector is damaged: invalid numbers.")
        return cls(steps, losses)

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
        self.state = state or SpikeState()

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
