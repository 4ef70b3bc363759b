"""Loss spikes: losses far above the recent ones, measured by their spread.

    m  median of the recent losses      s  1.4826 * median |loss - m|, a normal's deviation

A loss is a spike above m + max(6 s, 0.05 |m|). Both are medians over the window, so a spike among
the recent losses affects neither, and a permanent new level is the median after half a window.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import Any, Literal

OnSpike = Literal["note", "skip", "stop"]

NORMAL_DEVIATIONS = 1.4826
"""1 / Φ⁻¹(3/4): a normal's standard deviation in median absolute deviations."""
DEVIATIONS = 6.0
LEAST_RISE = 0.05
"""As a fraction of the median: a smooth curve has a narrow spread, but no spikes."""
WINDOW_STEPS = 128


def spike_limit(losses: Collection[float]) -> float:
    """The largest next loss that is not a spike."""
    middle = median(losses)
    deviation = NORMAL_DEVIATIONS * median(abs(loss - middle) for loss in losses)
    return middle + max(DEVIATIONS * deviation, LEAST_RISE * abs(middle))


class SpikeDetector:
    """Detects spikes among losses, none in the first `warmup_steps`, and none before there are
    `least_steps` recent losses.

    NaN and inf losses are ignored; all others count as recent losses, including spikes. `on_spike`
    is what the step does: update anyway, skip the batch, or stop the run.
    """

    def __init__(
        self, on_spike: OnSpike = "note", *, warmup_steps: int = 100, least_steps: int = 16
    ) -> None:
        self.on_spike = on_spike
        self.steps = 0
        """With a finite loss."""
        self.recent: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._warmup_steps, self._least_steps = warmup_steps, least_steps

    def sees_spike(self, loss: float) -> bool:
        """Whether this loss is a spike; adds it to the recent ones."""
        if not math.isfinite(loss):
            return False
        is_early = self.steps < self._warmup_steps or len(self.recent) < self._least_steps
        is_spike = not is_early and loss > spike_limit(self.recent)
        self.steps += 1
        self.recent.append(loss)
        return is_spike

    def state_dict(self) -> dict[str, Any]:
        """State as JSON data, which preserves floats exactly."""
        return {"steps": self.steps, "recent_losses": list(self.recent)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.steps = int(state_dict["steps"])
        self.recent = deque(map(float, state_dict["recent_losses"]), maxlen=WINDOW_STEPS)
