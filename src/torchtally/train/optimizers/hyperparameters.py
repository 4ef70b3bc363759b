"""Valid values of hyperparameters: one rule per name, the same for every optimizer."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Literal, get_args

from torchtally.errors import UsageError

LearningRateAdjustment = Literal["original", "match_rms_adamw"]
"""How Muon scales its learning rate with a matrix's shape; the names are torch.optim.Muon's."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_positive_or_zero(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_decay(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_two_decays(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_decay, value))


def _is_three_numbers(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 3 and all(map(_is_number, value))


def _is_yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def _is_iterations(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 100


def _is_adjustment(value: Any) -> bool:
    return value in get_args(LearningRateAdjustment)


_ZERO_OR_MORE = (_is_positive_or_zero, "a finite number, 0 or more")
_DECAY = (_is_decay, "a number in [0, 1)")
_YES_OR_NO = (_is_yes_or_no, "true or false")

_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "lr": _ZERO_OR_MORE,
    "adamw_lr": _ZERO_OR_MORE,
    "weight_decay": _ZERO_OR_MORE,
    "eps": _ZERO_OR_MORE,
    "momentum": _DECAY,
    "alpha": _DECAY,
    "betas": (_is_two_decays, "two numbers in [0, 1)"),
    "nesterov": _YES_OR_NO,
    "eps_inside_root": _YES_OR_NO,
    "orthogonalise": _YES_OR_NO,
    "ns_steps": (_is_iterations, "a whole number from 1 to 99"),
    "ns_coefficients": (_is_three_numbers, "three numbers"),
    "adjust_lr_fn": (_is_adjustment, " or ".join(map(repr, get_args(LearningRateAdjustment)))),
}


def check_hyperparameters(optimizer: str, values: Mapping[str, Any]) -> None:
    """Raises UsageError for the first invalid value.

    Names without a rule are skipped: torch keeps other keys in parameter groups.
    """
    for name, value in values.items():
        if name in _RULES:
            is_allowed, words = _RULES[name]
            if not is_allowed(value):
                raise UsageError(f"{optimizer}: {name}: expected {words}, got {value!r}.")
