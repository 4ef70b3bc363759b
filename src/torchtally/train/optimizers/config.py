"""The config of an optimizer: its name and hyperparameters."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from msgspec import Meta

from torchtally.checkpoints.checked import Decay, Magnitude, check_fields
from torchtally.errors import UsageError, check_choice

OptimizerImplementation = Literal["auto", "fused", "foreach", "for-loop"]
"""How a step goes over the tensors: by one fused kernel, one operator after the other over lists of
tensors, or one tensor after the other."""
DecayedOn = Literal["all", "matrices", "matrices without embeddings"]
"""Which parameters have weight decay. Matrices have two or more dimensions; norms and biases have
one, and decay only with "all"."""
LearningRateAdjustment = Literal["original", "match_rms_adamw"]
"""How Muon scales its learning rate with a matrix's shape; the names are torch.optim.Muon's."""
Betas = Annotated[
    tuple[Decay, Decay], Meta(description="an array such as [0.9, 0.95], of numbers in [0, 1)")
]
Iterations = Annotated[int, Meta(ge=1, le=99, description="a whole number from 1 to 99")]

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"lr": 1e-3, "weight_decay": 0.0},
    "momentum": {
        "lr": 1e-3, "weight_decay": 0.0, "momentum": 0.9, "nesterov": False,
    },
    "adagrad": {"lr": 1e-2, "weight_decay": 0.0, "eps": None, "eps_inside_root": False},
    "rmsprop": {"lr": 1e-2, "weight_decay": 0.0, "alpha": 0.99, "eps": 1e-8},
    "adam": {"lr": 1e-3, "weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8},
    "adamw": {"lr": 1e-3, "weight_decay": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8},
    "lion": {"lr": 1e-4, "weight_decay": 0.0, "betas": (0.9, 0.99)},
    "muon": {
        "lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "ns_steps": 5,
        "adjust_lr_fn": "match_rms_adamw", "adamw_lr": None, "betas": (0.9, 0.95), "eps": 1e-8,
    },
}  # fmt: skip
"""The hyperparameters of each optimizer with torch.optim's defaults, except Muon's adjustment, with
which its matrices and AdamW's other parameters share one learning rate."""

_OF_EVERY_OPTIMIZER = ("name", "implementation", "decayed_on")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """An optimizer and its hyperparameters; None is the optimizer's default.

    Raises UsageError for an unknown name, a key the optimizer lacks, and an invalid value.
    """

    name: str = "adamw"
    lr: Magnitude | None = None
    weight_decay: Magnitude | None = None
    betas: Betas | None = None
    eps: Magnitude | None = None
    momentum: Decay | None = None
    nesterov: bool | None = None
    alpha: Decay | None = None
    eps_inside_root: bool | None = None
    ns_steps: Iterations | None = None
    adjust_lr_fn: LearningRateAdjustment | None = None
    adamw_lr: Magnitude | None = None
    """Muon's learning rate for parameters other than hidden matrices; default `lr`."""
    decayed_on: DecayedOn = "matrices"
    implementation: OptimizerImplementation = "auto"

    def __post_init__(self) -> None:
        check_choice("unknown optimizer", self.name, DEFAULTS)
        check_fields(self)
        defaults = DEFAULTS[self.name]
        for key in self._given_values():
            if key not in defaults:
                raise UsageError(
                    f"The optimizer {self.name} has no {key}. Keys are: {', '.join(defaults)}."
                )
        if self.adjust_lr_fn == "original" and self.adamw_lr is None:
            raise UsageError(
                "The optimizer muon with adjust_lr_fn 'original' needs learning rates far above "
                "AdamW's (0.02 beside 3e-4): give adamw_lr for the other parameters."
            )

    def hyperparameters(self) -> dict[str, Any]:
        """All hyperparameters, given or default."""
        values = {**DEFAULTS[self.name], **self._given_values()}
        if self.name == "adagrad" and values["eps"] is None:
            # Inside the root it is added to squares, and so is much larger.
            values["eps"] = 1e-5 if values["eps_inside_root"] else 1e-10
        if self.name == "muon" and values["adamw_lr"] is None:
            values["adamw_lr"] = values["lr"]
        return values

    def _given_values(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in values.items()
            if key not in _OF_EVERY_OPTIMIZER and value is not None
        }
