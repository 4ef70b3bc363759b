"""Valid values of hyperparameters: one rule per name, the same for every optimizer."""

from collections.abc import Mapping
from sys import float_info
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from torchtally.errors import UsageError

LearningRateAdjustment = Literal["original", "match_rms_adamw"]
"""How Muon scales its learning rate with a matrix's shape; the names are torch.optim.Muon's."""

_Decay = Annotated[float, Meta(ge=0, lt=1)]
_ZERO_OR_MORE = (Annotated[float, Meta(ge=0, le=float_info.max)], "a finite number, 0 or more")
_DECAY = (_Decay, "a number in [0, 1)")
_YES_OR_NO = (bool, "true or false")

_RULES: Mapping[str, tuple[Any, str]] = {
    "lr": _ZERO_OR_MORE,
    "adamw_lr": _ZERO_OR_MORE,
    "weight_decay": _ZERO_OR_MORE,
    "eps": _ZERO_OR_MORE,
    "momentum": _DECAY,
    "alpha": _DECAY,
    "betas": (tuple[_Decay, _Decay], "two numbers in [0, 1)"),
    "nesterov": _YES_OR_NO,
    "eps_inside_root": _YES_OR_NO,
    "orthogonalise": _YES_OR_NO,
    "ns_steps": (Annotated[int, Meta(ge=1, le=99)], "a whole number from 1 to 99"),
    "adjust_lr_fn": (
        LearningRateAdjustment, " or ".join(map(repr, get_args(LearningRateAdjustment))),
    ),
}  # fmt: skip
"""The type and range of each name, and how an error calls them."""


def check_hyperparameters(optimizer: str, values: Mapping[str, Any]) -> None:
    """Raises UsageError for the first invalid value.

    Names without a rule are skipped: torch keeps other keys in parameter groups.
    """
    for name, value in values.items():
        if name in _RULES:
            kind, words = _RULES[name]
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise UsageError(
                    f"{optimizer}: {name}: expected {words}, got {value!r}."
                ) from error
