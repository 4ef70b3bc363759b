"""Learning rate schedules: pure functions from a step to a factor in [0, 1].

Steps count from 0; the factor of a step applies to its update. A run that resumes at step n
computes the factor at n: there is no state to save.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Literal

import torch

from torchtally.checkpoints.checked import Count, Share, Size, check_fields
from torchtally.errors import UsageError

Shape = Literal["constant", "linear", "cosine", "wsd"]
DecayShape = Literal["linear", "cosine", "sqrt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateConfig:
    """The learning rate rises over `warmup_steps`, then falls to `floor` as `shape` says.

    constant: 1. linear and cosine (Loshchilov and Hutter 2017, arXiv 1608.03983): down from the end
    of the warm-up to `floor` at step `steps`. wsd, warm-up, stable, decay (Hu et al. 2024, arXiv
    2404.06395): 1 until `decay_steps` before `steps`, then down by `decay_shape`, of which "sqrt"
    is 1 - √x (Hägele et al. 2024, arXiv 2405.18392).

    Warm-up takes step n to (n + 1) / (warmup_steps + 1): the first update is not lost, and 1 is
    reached at step `warmup_steps`. The floor is reached at `steps`, after the last of them, and
    held.
    """

    shape: Shape = "cosine"
    warmup_steps: Count = 0
    """In a config at most steps - 1: a shorter run is all warm-up."""
    floor: Share | None = None
    """Fraction of the full rate at the end; default 0."""
    decay_steps: Size | None = None
    """wsd only; default a tenth of the steps, at most those after the warm-up."""
    decay_shape: DecayShape | None = None
    """wsd only; default "linear"."""

    def __post_init__(self) -> None:
        check_fields(self)
        foreign = ["floor"] if self.shape == "constant" else []
        foreign += ["decay_steps", "decay_shape"] if self.shape != "wsd" else []
        for key in foreign:
            if getattr(self, key) is not None:
                raise UsageError(f"The schedule {self.shape} has no {key}. Remove it.")

    def schedule(self, steps: int) -> "RateSchedule":
        """The schedule of a run of this many steps. Raises UsageError for a longer decay."""
        # `--steps 100` tries a config out: its warm-up may be as long as that.
        is_constant = self.shape == "constant"
        warmup = self.warmup_steps if is_constant else min(self.warmup_steps, max(steps - 1, 0))
        if self.decay_steps is not None and self.decay_steps > steps - warmup:
            raise UsageError(
                f"schedule decay_steps: expected 1 to {steps - warmup} ({steps} steps less "
                f"{warmup} of warm-up), got {self.decay_steps}."
            )
        if self.shape == "wsd":
            decay = self.decay_steps or min(max(steps // 10, 1), steps - warmup)
            return RateSchedule(
                warmup, steps - decay, steps, self.decay_shape or "linear", self.floor
            )
        return RateSchedule(warmup, warmup, steps, self.shape, self.floor)


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """That of a run."""

    warmup_steps: int
    decay_start: int
    """The last step at the full rate."""
    steps: int
    """Of the whole run, including the warm-up."""
    decay: str
    """A shape."""
    floor: float | None

    def factor(self, step: int) -> float:
        """The factor of the full learning rate at this step."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.decay == "constant":
            return 1.0
        passed = (step - self.decay_start) / (self.steps - self.decay_start)
        floor = self.floor or 0.0
        return floor + (1 - floor) * _remaining(self.decay, min(max(passed, 0.0), 1.0))


def learning_rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """The learning rate of each parameter group; the full ones, if the optimizer is new."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, full_rates: Sequence[float], factor: float
) -> None:
    """Sets each group's learning rate: its full one, by `learning_rates`, times `factor`."""
    for group, full in zip(optimizer.param_groups, full_rates, strict=True):
        group["lr"] = full * factor


def _remaining(shape: str, passed: float) -> float:
    """Share of the decay that is left: 1 at its start, 0 at its end."""
    if shape == "cosine":
        return 0.5 * (1 + cos(pi * passed))
    if shape == "sqrt":
        return 1 - sqrt(passed)
    return 1 - passed
