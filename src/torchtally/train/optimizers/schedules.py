"""Learning rate schedules: pure functions from a step to a factor in [0, 1].

Steps count from 0; the factor of a step applies to its update. A run that resumes at step n
computes the factor at n: there is no state to save.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi, sqrt
from typing import Literal, get_args

import torch

from torchtally.errors import UsageError, check_choice

Shape = Literal["constant", "linear", "cosine", "wsd"]
DecayShape = Literal["linear", "cosine", "sqrt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The learning rate rises over `warmup_steps`, then falls to `floor` as `shape` says.

    constant: 1. linear and cosine (Loshchilov and Hutter 2017, arXiv 1608.03983): down from the end
    of the warm-up to `floor` at step `steps`. wsd, warm-up, stable, decay (Hu et al. 2024, arXiv
    2404.06395): 1 until `decay_steps` before `steps`, then down by `decay_shape`, of which "sqrt"
    is 1 - √x (Hägele et al. 2024, arXiv 2405.18392).

    Warm-up takes step n to (n + 1) / (warmup_steps + 1): the first update is not lost, and 1 is
    reached at step `warmup_steps`. The floor is reached at `steps`, after the last of them, and
    held. Raises UsageError for invalid values, and for keys that the shape lacks.
    """

    shape: Shape = "cosine"
    steps: int | None = None
    """Of the whole run, including the warm-up."""
    warmup_steps: int = 0
    floor: float | None = None
    """Fraction of the full rate at the end; default 0."""
    decay_steps: int | None = None
    """wsd only; default a tenth of the steps, at most those after the warm-up."""
    decay_shape: DecayShape | None = None
    """wsd only; default "linear"."""

    def __post_init__(self) -> None:
        _check_keys(self)
        _check_values(self)

    def factor(self, step: int) -> float:
        """The factor of the full learning rate at this step."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.shape == "constant":
            return 1.0
        assert self.steps is not None
        start = self.decay_start
        passed = min(max((step - start) / (self.steps - start), 0.0), 1.0)
        floor = self.floor or 0.0
        return floor + (1 - floor) * _remaining(self.decay_form, passed)

    @property
    def decay_start(self) -> int:
        """The last step at the full rate."""
        if self.shape != "wsd":
            return self.warmup_steps
        assert self.steps is not None
        after_warmup = self.steps - self.warmup_steps
        return self.steps - (self.decay_steps or min(max(self.steps // 10, 1), after_warmup))

    @property
    def decay_form(self) -> str:
        """Of the decay: a key of `_remaining`."""
        return self.shape if self.shape != "wsd" else self.decay_shape or "linear"


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
    """1 at the start of the decay, 0 at its end."""
    if shape == "cosine":
        return 0.5 * (1 + cos(pi * passed))
    if shape == "sqrt":
        return 1 - sqrt(passed)
    return 1 - passed


def _check_keys(schedule: ScheduleConfig) -> None:
    check_choice("unknown schedule", schedule.shape, get_args(Shape))
    if schedule.shape != "constant" and schedule.steps is None:
        raise UsageError(f"The schedule {schedule.shape} needs steps, the length of the run.")
    foreign = ["floor"] if schedule.shape == "constant" else []
    foreign += ["decay_steps", "decay_shape"] if schedule.shape != "wsd" else []
    for key in foreign:
        if getattr(schedule, key) is not None:
            raise UsageError(f"The schedule {schedule.shape} has no {key}. Remove it.")


def _check_values(schedule: ScheduleConfig) -> None:
    floor, steps, warmup, decay = (
        schedule.floor, schedule.steps, schedule.warmup_steps, schedule.decay_steps,
    )  # fmt: skip
    if floor is not None and not (isfinite(floor) and 0 <= floor <= 1):
        raise UsageError(f"schedule floor: expected a fraction in [0, 1], got {floor}.")
    if warmup < 0:
        raise UsageError(f"schedule warmup_steps: expected 0 or more, got {warmup}.")
    if steps is not None and warmup >= steps:
        raise UsageError(
            f"schedule warmup_steps: expected fewer than the run's {steps} steps, got {warmup}."
        )
    if schedule.decay_shape is not None:
        check_choice("unknown decay_shape", schedule.decay_shape, get_args(DecayShape))
    if decay is not None and steps is not None and not 1 <= decay <= steps - warmup:
        raise UsageError(
            f"schedule decay_steps: expected 1 to {steps - warmup} ({steps} steps less {warmup} of "
            f"warm-up), got {decay}."
        )
