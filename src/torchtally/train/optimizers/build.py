"""From a config to an optimizer: whose code, with which groups."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from torchtally.errors import UsageError
from torchtally.train.optimizers.adagrad import AdaGrad
from torchtally.train.optimizers.adam import Adam, AdamW
from torchtally.train.optimizers.config import OptimizerConfig, OptimizerImplementation
from torchtally.train.optimizers.foreach import ParameterGroup
from torchtally.train.optimizers.groups import (
    IsHidden,
    ParameterSource,
    TrainedParameter,
    decay_groups,
    trained_parameters,
)
from torchtally.train.optimizers.lion import Lion
from torchtally.train.optimizers.muon import Muon
from torchtally.train.optimizers.rmsprop import RMSProp
from torchtally.train.optimizers.sgd import SGD
from torchtally.train.shards import is_shard

OWN: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": SGD, "momentum": SGD, "adagrad": AdaGrad, "rmsprop": RMSProp,
    "adam": Adam, "adamw": AdamW, "lion": Lion, "muon": Muon,
}  # fmt: skip
TORCHS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}  # fmt: skip
"""torch's, where it has foreach. Its Muon is one matrix after the other, as ours, and for matrices
alone."""

_FUSED = ("sgd", "momentum", "adam", "adamw")
_HAS_FUSED_ADAGRAD_ON_CUDA = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
"""By torch.optim.Adagrad's documentation; before, its fused form is the CPU's alone."""
FUSED_ON: Mapping[str, Sequence[str]] = {
    "cpu": (*_FUSED, "adagrad"),
    "cuda": (*_FUSED, "adagrad") if _HAS_FUSED_ADAGRAD_ON_CUDA else _FUSED,
}
"""The optimizers that torch has fused kernels for, by the type of device."""

FUSED_ON_SHARDS = ("adam", "adamw")
"""Those whose fused kernel a DTensor knows. In torch 2.13 the others raise NotImplementedError
("does not have a sharding strategy registered").
"""


def build(
    parameters: ParameterSource, config: OptimizerConfig, *, is_hidden: IsHidden | None = None
) -> torch.optim.Optimizer:
    """The optimizer that the config asks for, of a model or of its parameters.

    Muon needs the model or its named parameters: `is_hidden(name, parameter)` says which matrices
    are its own, by default those that are neither embedding nor head. Raises UsageError for an
    implementation that there is not, and where there is nothing to train.
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
    if chosen == "own":
        return OWN[config.name](groups, **values)
    options = {**_without(values, "eps_inside_root"), str(chosen): True}
    return TORCHS[config.name](groups, **options)


def implementations(
    config: OptimizerConfig, devices: Collection[str], *, are_shards: bool = False
) -> tuple[str, ...]:
    """Those there are for this optimizer on devices of these types, the fastest first.

    Fused kernels read and write each tensor once. On the CPU they take 0.2 to 0.6 of the time of
    torch's for-loop for all but plain SGD; the equations here take 0.6 to 1.0 and torch's foreach
    0.8 to 1.2 (benchmarks/optimizers.py, one thread).
    """
    if config.name not in TORCHS or config.eps_inside_root:
        return ("own",)
    has_fused = not are_shards or config.name in FUSED_ON_SHARDS
    if has_fused and all(config.name in FUSED_ON.get(device, ()) for device in devices):
        return ("fused", "own", "foreach")
    return ("own", "foreach")


def implementation(
    config: OptimizerConfig, devices: Collection[str], *, are_shards: bool = False
) -> OptimizerImplementation:
    """Whose code takes the step: what the config says, and for "auto" the fastest there is."""
    there = implementations(config, devices, are_shards=are_shards)
    chosen = there[0] if config.implementation == "auto" else config.implementation
    if chosen not in there:
        form = " with eps_inside_root" if config.eps_inside_root else ""
        where = " and ".join(sorted(devices)) + (", for weights in shards" if are_shards else "")
        raise UsageError(
            f"There is no implementation {chosen!r} of {config.name}{form} on {where}. "
            f"There is: {', '.join(there)}; or 'auto'."
        )
    return chosen  # type: ignore[return-value]


def load_state(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Goes on from a state dict of the same optimizer, whichever implementation made it.

    State and hyperparameters are the state dict's; whose code takes the step stays this
    optimizer's. Raises UsageError where the parameters are not those that were saved.
    """
    own, saved = optimizer.param_groups, state_dict["param_groups"]
    if [len(record["params"]) for record in own] != [len(record["params"]) for record in saved]:
        raise UsageError(
            f"The saved optimizer has groups of {_sizes(saved)} parameters, this one of "
            f"{_sizes(own)}. Resume with the model and the config that were saved."
        )
    for here, there in zip(own, saved, strict=True):
        names = zip(here.get("param_names", ()), there.get("param_names", ()), strict=False)
        differ = next(((own, saved) for own, saved in names if own != saved), None)
        if differ is not None:
            raise UsageError(
                f"The saved optimizer has parameter {differ[1]!r} where this one has "
                f"{differ[0]!r}. Resume with the model and the config that were saved."
            )
    groups = [_merge_group(here, there) for here, there in zip(own, saved, strict=True)]
    optimizer.load_state_dict({**state_dict, "param_groups": groups})


_OF_THE_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable", "maximize")


def _merge_group(here: ParameterGroup, there: ParameterGroup) -> ParameterGroup:
    saved_values = {
        key: there[key] for key in here if key in there and key not in _OF_THE_IMPLEMENTATION
    }
    return {**here, **saved_values, "params": there["params"]}


def _muon_groups(
    trained: Sequence[TrainedParameter], config: OptimizerConfig
) -> list[ParameterGroup]:
    if any(parameter.name is None for parameter in trained):
        raise UsageError(
            "The optimizer muon treats embeddings and heads unlike other matrices, and has to know "
            "them. Give the model, or model.named_parameters(), for model.parameters()."
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
