"""Median stopping: a run that is worse than most others were at its step need not go on.

A run is stopped if its lowest loss so far is above the median of the other runs' means of all
losses up to the same step (Golovin et al. 2017, Google Vizier, section 3.2.2). Losses are those of
validation where the sweep has them, else of training.
"""

from collections.abc import Sequence
from statistics import fmean, median

from torchtally.sweep.results import LossSeries

LEAST_OTHERS = 3
"""Runs that came as far; a median of fewer says little."""


def is_above_median(losses: LossSeries, others: Sequence[LossSeries]) -> bool:
    """Whether a run with these losses so far is to be stopped."""
    if not losses:
        return False
    step = losses[-1][0]
    means = [
        fmean(loss for at, loss in other if at <= step)
        for other in others
        if other and other[0][0] <= step <= other[-1][0]
    ]
    if len(means) < LEAST_OTHERS:
        return False
    return not min(loss for _, loss in losses) <= median(means)
