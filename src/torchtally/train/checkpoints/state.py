"""The state of a training as tensors by name and plain data, and how to restore it.

    model/NAME              the model's state dict
    optimizer/NAME/KEY      the optimizer's state for the parameter NAME
    random/RANK/NAME        a rank's random states

Names are those of the plain model, so one process, DDP and FSDP2 read each other's checkpoints.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest, as_plain_json, explain_damaged_state
from torchtally.checkpoints.plain import as_json
from torchtally.checkpoints.randomness import random_tensors, saved_random, set_random
from torchtally.checkpoints.storage import read, torch_dtype
from torchtally.errors import CheckpointError
from torchtally.train.models.transformer import Transformer
from torchtally.train.optimizers.build import OF_THE_IMPLEMENTATION, load_state
from torchtally.train.trainer import Trainer

MODEL, OPTIMIZER = "model/", "optimizer/"
ARCHITECTURE = "architecture"
"""In the plain data: all sizes of a decoder, with those of presets and of weights' config.json."""


class TrainerContents:
    """What a checkpoint has of a trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.ranks = trainer.ranks

    def parameters(self) -> Iterator[Tensor]:
        return self._trainer.model.parameters()

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self._trainer)

    def described(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "config": as_json(trainer.config.document()),
            "state": state_of(trainer),
            "fingerprints": as_json(trainer.task.fingerprints),
        }


def tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """All tensors of this rank, not copied."""
    return {
        **_model(trainer),
        **{
            f"{OPTIMIZER}{name}/{key}": value
            for name, parameter in _parameters(trainer.optimizer)
            for key, value in trainer.optimizer.state.get(parameter, {}).items()
            if value is not None  # torch.optim.SGD has None before its first step
        },
        **random_tensors(trainer.ranks.rank),
    }


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Everything that is not a tensor, as JSON data."""
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in trainer.optimizer.param_groups
    ]
    state = {"stepper": trainer.stepper.state_dict(), "groups": groups}
    if isinstance(trainer.task.model, Transformer):
        state[ARCHITECTURE] = as_json(trainer.task.model.config)
    data: dict[str, Any] = as_plain_json(state)
    return data


def restore(trainer: Trainer, checkpoints: Checkpoints, manifest: Manifest) -> bool:
    """Restore the trainer. Returns whether this rank's random states were restored, too.

    Ranks that did not exist when it was saved have none. Raises CheckpointError if the model or
    the optimizer differs; the trainer is unusable then.
    """
    model = _model(trainer)
    _check_names(model, manifest)
    kept = _optimizer_targets(trainer.optimizer, manifest)
    random = saved_random(manifest, trainer.ranks.rank)
    ranks = trainer.ranks
    targets = {**model, **kept, **random}
    read(targets, checkpoints, manifest, ranks=ranks.size, group=ranks.group)
    with explain_damaged_state(manifest):
        _set_optimizer(trainer.optimizer, kept, manifest.state["groups"])
        trainer.stepper.load_state_dict(manifest.state["stepper"])
    set_random(random)
    return bool(random)


def _model(trainer: Trainer) -> dict[str, Tensor]:
    return {
        MODEL + name: value
        for name, value in trainer.model.state_dict().items()
        if isinstance(value, Tensor)
    }


def _check_names(model: Mapping[str, Tensor], manifest: Manifest) -> None:
    """Refuse tensors that only the checkpoint has; `read` refuses those it lacks."""
    extra_names = [
        name for name in manifest.tensors if name.startswith(MODEL) and name not in model
    ]
    if extra_names:
        name = extra_names[0].removeprefix(MODEL)
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} has a tensor {name!r} that this model lacks. "
            "Resume with the model that was saved."
        )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for group in optimizer.param_groups:
        yield from zip(group["param_names"], group["params"], strict=True)


def _optimizer_targets(optimizer: torch.optim.Optimizer, manifest: Manifest) -> dict[str, Tensor]:
    """Buffers for the saved state: optimizers allocate theirs in the first step."""
    parameters = dict(_parameters(optimizer))
    targets: dict[str, Tensor] = {}
    for full, saved in manifest.tensors.items():
        if not full.startswith(OPTIMIZER):
            continue
        name, _, _ = full.removeprefix(OPTIMIZER).rpartition("/")
        parameter = parameters.get(name)
        if parameter is None:
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} has optimizer state for {name!r}, which "
                "is not trained here. Resume with the saved config."
            )
        if tuple(parameter.shape) == saved.shape:  # a DTensor parameter gives a DTensor
            targets[full] = torch.empty_like(
                parameter, dtype=torch_dtype(saved), requires_grad=False
            )
        else:
            targets[full] = torch.empty(saved.shape, dtype=torch_dtype(saved))
    return targets


def _set_optimizer(
    optimizer: torch.optim.Optimizer, kept: Mapping[str, Tensor], saved: list[dict[str, Any]]
) -> None:
    own = optimizer.param_groups
    if len(own) != len(saved):
        raise CheckpointError(
            f"The saved optimizer has {len(saved)} parameter groups, this one {len(own)}. "
            "Resume with the saved config."
        )
    indices = {name: at for at, (name, _) in enumerate(_parameters(optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in kept.items():
        name, _, key = full.removeprefix(OPTIMIZER).rpartition("/")
        state.setdefault(indices[name], {})[key] = value
    groups = [
        {
            # Hyperparameters are the config's, which may have changed; other keys are state.
            **{
                key: here[key] if key in optimizer.defaults else _like(value, here.get(key))
                for key, value in there.items()
            },
            "params": [indices[name] for name in here["param_names"]],
            "param_names": list(here["param_names"]),
        }
        for here, there in zip(own, saved, strict=True)
    ]
    load_state(optimizer, {"state": state, "param_groups": groups})


def hyperparameter_changes(trainer: Trainer, manifest: Manifest) -> Iterator[str]:
    """Hyperparameters of the optimizer that differ from the saved ones, group by group.

    Learning rates are left out: the schedule sets them in every step.
    """
    optimizer = trainer.optimizer
    for here, there in zip(optimizer.param_groups, manifest.state["groups"], strict=True):
        for key in optimizer.defaults:
            if key in here and key in there and key not in ("lr", *OF_THE_IMPLEMENTATION):
                now, was = here[key], _like(there[key], here[key])
                if now != was:
                    yield f"{key} {now} (saved: {was})"


def _like(saved: Any, here: Any) -> Any:
    """A saved value with JSON's lists turned back into tuples."""
    return tuple(saved) if isinstance(here, tuple) and isinstance(saved, list) else saved
