"""Losses that jump: far above the recent ones, measured in their own spread.

    m  median of the recent losses      s  1.4826 * median |loss - m|, a normal's deviation

Both are the middle of the window, so a spike among the recent losses moves neither, and a level to
which the loss has gone for good is the new middle after half a window.
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
    """What the step does: update all the same, leave this batch out, or end the run."""
    deviations: float = 6.0
    least_rise: float = 0.05
    """As a share of the median: what a smooth curve does is no spike, however narrow its spread."""
    window_steps: int = 128
    warmup_steps: int = 100
    """No spike is found in the first so many steps."""
    least_steps: int = 16
    """Nor before the window has so many losses."""

    def __post_init__(self) -> None:
        if self.on_spike not in get_args(OnSpike):
            raise UsageError(
                f"on_spike: {self.on_spike!r} is not known: give one of "
                f"{', '.join(get_args(OnSpike))}."
            )
        for name in ("deviations", "least_rise"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name}: {value} must be 0 or more.")
        if not 2 <= self.least_steps <= self.window_steps:
            raise UsageError(
                f"least_steps: {self.least_steps} must be 2 or more, and no more than the "
                f"window_steps, {self.window_steps}."
            )
        if self.warmup_steps < 0:
            raise UsageError(f"warmup_steps: {self.warmup_steps} cannot be negative.")


@dataclass(frozen=True, slots=True)
class SpikeState:
    """What was seen so far: all that a checkpoint needs."""

    steps: int = 0
    """With a finite loss."""
    recent_losses: tuple[float, ...] = ()
    """The oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which keeps every bit of a float."""
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
            raise UsageError("The saved state of the spike detector is damaged: not its numbers.")
        return cls(steps, losses)

    def after(self, loss: float, window_steps: int) -> "SpikeState":
        """With one more loss, a spike or not."""
        return SpikeState(self.steps + 1, (*self.recent_losses, loss)[-window_steps:])


def spike_limit(losses: Sequence[float], config: SpikeConfig) -> float:
    """The largest loss that is no spike after these."""
    middle = median(losses)
    deviation = NORMAL_DEVIATIONS * median(abs(loss - middle) for loss in losses)
    return middle + max(config.deviations * deviation, config.least_rise * abs(middle))


class SpikeDetector:
    """Tells of each loss whether it is a spike beside those before it.

    A loss that is inf or nan is none of its matter: not a spike, and not among the recent ones.
    Every other is, spikes too.
    """

    def __init__(self, config: SpikeConfig, state: SpikeState | None = None) -> None:
        self.config = config
        self.state = state or SpikeState()

    def limit(self) -> float:
        """The largest next loss that is no spike; inf while it is too early to tell."""
        state, config = self.state, self.config
        is_early = state.steps < config.warmup_steps
        if is_early or len(state.recent_losses) < config.least_steps:
            return math.inf
        return spike_limit(state.recent_losses, config)

    def sees_spike(self, loss: float) -> bool:
        """Whether this loss is a spike; it is among the recent ones from then on."""
        if not math.isfinite(loss):
            return False
        limit = self.limit()
        self.state = self.state.after(loss, self.config.window_steps)
        return loss > limit
