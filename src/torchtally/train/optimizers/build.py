"""Builds an optimizer from its config: which implementation, with which parameter groups."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from torchtally.checkpoints.shards import is_shard
from torchtally.errors import UsageError
from torchtally.torch_private import devices_with_foreach
from torchtally.train.optimizers.config import OptimizerConfig, OptimizerImplementation
from torchtally.train.optimizers.groups import (
    IsHidden,
    ParameterSource,
    TrainedParameter,
    decay_groups,
    trained_parameters,
)
from torchtally.train.optimizers.hyperparameters import check_hyperparameters
from torchtally.train.optimizers.lion import Lion
from torchtally.train.optimizers.muon import Muon
from torchtally.train.optimizers.own import ParameterGroup

TORCHS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}  # fmt: skip
"""Muon is ours: torch.optim.Muon takes matrices alone and knows no shards, and in bfloat16 without
nesterov it divides its own momentum by its norm (torch 2.13)."""

_FUSED = ("sgd", "momentum", "adam", "adamw")
_HAS_FUSED_ADAGRAD_ON_CUDA = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
"""By the documentation of torch.optim.Adagrad; older versions have it only on the CPU."""
FUSED_ON: Mapping[str, Sequence[str]] = {
    "cpu": (*_FUSED, "adagrad"),
    "cuda": (*_FUSED, "adagrad") if _HAS_FUSED_ADAGRAD_ON_CUDA else _FUSED,
}
"""Optimizers with fused kernels in torch, by device type."""

IMPLEMENTATIONS: Mapping[str, dict[str, Any]] = {
    "fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False},
}  # fmt: skip
"""What torch.optim's constructors call them."""

FUSED_ON_SHARDS = ("adam", "adamw")
"""Optimizers whose fused kernel supports DTensor. In torch 2.13 the others raise
NotImplementedError ("does not have a sharding strategy registered").
"""


def build(
    parameters: ParameterSource, config: OptimizerConfig, *, is_hidden: IsHidden | None = None
) -> torch.optim.Optimizer:
    """The optimizer of a config, for a model or its parameters.

    Muon needs the model or its named parameters: `is_hidden(name, parameter)` selects its matrices,
    by default those that are neither embedding nor head. Raises UsageError for an unavailable
    implementation, and if nothing is trainable.
    """
    trained = trained_parameters(parameters, is_hidden)
    values = config.hyperparameters()
    devices = {trained_parameter.parameter.device.type for trained_parameter in trained}
    chosen = implementation(
        config,
        devices,
        are_shards=any(is_shard(trained_parameter.parameter) for trained_parameter in trained),
    )
    if config.name == "muon":
        return Muon(_muon_groups(trained, config), **_without(values, "adamw_lr"))
    groups = decay_groups(trained, values["weight_decay"], config.decayed_on)
    if config.name == "lion":
        return Lion(groups, **values)
    if values.pop("eps_inside_root", False):
        # Squares are added to ε from the first step on: √(ε + Σ g²).
        values |= {"eps": 0.0, "initial_accumulator_value": values["eps"]}
    return TORCHS[config.name](groups, **values, **IMPLEMENTATIONS[chosen])


def implementations(
    config: OptimizerConfig, devices: Collection[str], *, are_shards: bool = False
) -> tuple[str, ...]:
    """The implementations available on devices of these types, fastest first.

    Fused kernels read and write each tensor once: on the CPU they take 0.2 to 0.6 of the time of
    the for-loop for all but plain SGD, and foreach 1.0 to 2.4 (benchmarks/optimizers.py, one
    thread). Ours have one.
    """
    if config.name not in TORCHS:
        return ("foreach",)
    # On the CPU torch's foreach is a loop, too, and rounds a decay of 0.999 to bfloat16: to 1.
    has_kernels = set(devices) <= set(devices_with_foreach())
    plain = ("foreach", "for-loop") if has_kernels else ("for-loop", "foreach")
    has_fused = not are_shards or config.name in FUSED_ON_SHARDS
    if has_fused and all(config.name in FUSED_ON.get(device, ()) for device in devices):
        return ("fused", *plain)
    return plain


def implementation(
    config: OptimizerConfig, devices: Collection[str], *, are_shards: bool = False
) -> OptimizerImplementation:
    """The implementation of the config; for "auto" the fastest available."""
    there = implementations(config, devices, are_shards=are_shards)
    chosen = there[0] if config.implementation == "auto" else config.implementation
    if chosen not in there:
        where = " and ".join(sorted(devices)) + (", with sharded weights" if are_shards else "")
        raise UsageError(
            f"{config.name} has no implementation {chosen!r} on {where}. "
            f"Choose from {', '.join(there)}, or 'auto'."
        )
    return chosen  # type: ignore[return-value]


def load_state(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Load a state dict of the same optimizer, from any implementation.

    State and hyperparameters are loaded; the implementation stays. Raises UsageError if the
    parameters differ from the saved ones.
    """
    own, saved = optimizer.param_groups, state_dict["param_groups"]
    if [len(record["params"]) for record in own] != [len(record["params"]) for record in saved]:
        raise UsageError(
            f"The saved optimizer has groups of {_sizes(saved)} parameters, this one of "
            f"{_sizes(own)}. Resume with the saved model and config."
        )
    for here, there in zip(own, saved, strict=True):
        names = zip(here.get("param_names", ()), there.get("param_names", ()), strict=False)
        differ = next(((own, saved) for own, saved in names if own != saved), None)
        if differ is not None:
            raise UsageError(
                f"The saved optimizer has parameter {differ[1]!r} where this one has "
                f"{differ[0]!r}. Resume with the saved model and config."
            )
    for there in saved:
        check_hyperparameters("The saved optimizer", there)
    groups = [_merge_group(here, there) for here, there in zip(own, saved, strict=True)]
    optimizer.load_state_dict({**state_dict, "param_groups": groups})


OF_THE_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable", "maximize")


def _merge_group(here: ParameterGroup, there: ParameterGroup) -> ParameterGroup:
    saved_values = {
        key: there[key] for key in here if key in there and key not in OF_THE_IMPLEMENTATION
    }
    return {**here, **saved_values, "params": there["params"]}


def _muon_groups(
    trained: Sequence[TrainedParameter], config: OptimizerConfig
) -> list[ParameterGroup]:
    if any(parameter.name is None for parameter in trained):
        raise UsageError(
            "The optimizer muon treats embeddings and heads differently from other matrices. Pass "
            "the model or model.named_parameters() instead of model.parameters()."
        )
    values = config.hyperparameters()
    hidden = [parameter for parameter in trained if parameter.is_hidden_matrix]
    others = [parameter for parameter in trained if not parameter.is_hidden_matrix]
    return [
        group
        for members, lr, is_hidden in (
            (hidden, values["lr"], True), (others, values["adamw_lr"], False),
        )
        for group in decay_groups(
            members, values["weight_decay"], config.decayed_on, lr=lr, orthogonalise=is_hidden
        )
    ]  # fmt: skip


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def _sizes(groups: Sequence[ParameterGroup]) -> str:
    return " and ".join(str(len(group["params"])) for group in groups)
