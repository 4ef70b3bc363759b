"""Builds an optimizer from its config: which implementation, with which parameter groups."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from torchtally.checkpoints.shards import is_shard
from torchtally.errors import UsageError
from torchtally.torch_private import devices_with_foreach
from torchtally.train.optimizers.config import OptimizerConfig, OptimizerImplementation
from torchtally.train.optimizers.groups import ParameterSource, decay_groups, trained_parameters
from torchtally.train.optimizers.lion import Lion
from torchtally.train.optimizers.muon import Muon

TORCHS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
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
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
}
"""What torch.optim's constructors call them."""

FUSED_ON_SHARDS = ("adam", "adamw")
"""Optimizers whose fused kernel supports DTensor. In torch 2.13 the others raise
NotImplementedError ("does not have a sharding strategy registered").
"""


def build(parameters: ParameterSource, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of a config, for a model or its named parameters.

    Raises UsageError for an unavailable implementation, and if nothing is trainable.
    """
    trained = trained_parameters(parameters)
    values = config.hyperparameters()
    devices = {trained_parameter.parameter.device.type for trained_parameter in trained}
    chosen = implementation(
        config,
        devices,
        are_shards=any(is_shard(trained_parameter.parameter) for trained_parameter in trained),
    )
    if config.name == "muon":
        lrs = {True: values["lr"], False: values.pop("adamw_lr")}
        return Muon([
            group
            for is_hidden, lr in lrs.items()
            for group in decay_groups(
                [each for each in trained if each.is_hidden_matrix is is_hidden],
                values["weight_decay"], config.decayed_on, lr=lr, orthogonalise=is_hidden,
            )
        ], **values)  # fmt: skip
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
