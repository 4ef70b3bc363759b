"""What a training is made of: its tensors by name, its plain data, and both put back.

    model/NAME              the model's state dict
    optimizer/NAME/KEY      what the optimizer keeps for the parameter of that name
    random/RANK/NAME        a rank's random states

Names are those of the plain model, so one process, DDP and FSDP2 read each other's. Learning rates
and the data's order are functions of the step and have no state.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchtally.errors import CheckpointError
from torchtally.train.checkpoints.folder import Checkpoints
from torchtally.train.checkpoints.manifest import Manifest, as_plain_json
from torchtally.train.checkpoints.randomness import random_states, set_random_states
from torchtally.train.checkpoints.storage import read, torch_dtype
from torchtally.train.optimizers import load_state
from torchtally.train.trainer import Trainer

MODEL, OPTIMIZER, RANDOM = "model/", "optimizer/", "random/"


def tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """All of this rank, live: what is saved."""
    return {
        **_model(trainer),
        **{
            f"{OPTIMIZER}{name}/{key}": value
            for name, parameter in _parameters(trainer.optimizer)
            for key, value in trainer.optimizer.state.get(parameter, {}).items()
            if value is not None  # torch's SGD before its first step
        },
        **{_random(trainer.ranks.rank) + name: state for name, state in random_states().items()},
    }


def state_of(trainer: Trainer) -> dict[str, Any]:
    """What is no tensor, as JSON keeps it."""
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in trainer.optimizer.param_groups
    ]
    data: dict[str, Any] = as_plain_json(
        {"stepper": trainer.stepper.state_dict(), "groups": groups}
    )
    return data


def restore(trainer: Trainer, checkpoints: Checkpoints, manifest: Manifest) -> bool:
    """The trainer as it was saved. Whether this rank's random numbers go on, too.

    They do not on ranks that were not there when it was saved. Raises CheckpointError where the
    model or the optimizer is another one; the trainer is of no use then.
    """
    model = _model(trainer)
    _check_names(model, manifest)
    kept = _optimizer_targets(trainer.optimizer, manifest)
    prefix = _random(trainer.ranks.rank)
    random = {
        name: torch.empty(saved_tensor.shape, dtype=torch_dtype(saved_tensor))
        for name, saved_tensor in manifest.tensors.items()
        if name.startswith(prefix)
    }
    ranks = trainer.ranks
    targets = {**model, **kept, **random}
    read(targets, checkpoints, manifest, ranks=ranks.size, group=ranks.group)
    with explain_damaged_state(manifest):
        _set_optimizer(trainer.optimizer, kept, manifest.state["groups"])
        trainer.stepper.load_state_dict(manifest.state["stepper"])
    if random:
        set_random_states({name.removeprefix(prefix): state for name, state in random.items()})
    return bool(random)


@contextmanager
def explain_damaged_state(manifest: Manifest) -> Iterator[None]:
    """What its plain data lacks, or has in another form, is a CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"The state in the manifest of step {manifest.step} is none of a training "
            f"({type(error).__name__}: {error})."
        ) from error


def _model(trainer: Trainer) -> dict[str, Tensor]:
    return {
        MODEL + name: value
        for name, value in trainer.model.state_dict().items()
        if isinstance(value, Tensor)
    }


def _check_names(model: Mapping[str, Tensor], manifest: Manifest) -> None:
    """The reader tells of what the checkpoint has not; this of what only the checkpoint has."""
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


def _random(rank: int) -> str:
    return f"{RANDOM}{rank:05}/"


def _optimizer_targets(optimizer: torch.optim.Optimizer, manifest: Manifest) -> dict[str, Tensor]:
    """Room for everything that was kept: optimizers have none before their first step."""
    parameters = dict(_parameters(optimizer))
    targets: dict[str, Tensor] = {}
    for full, saved in manifest.tensors.items():
        if not full.startswith(OPTIMIZER):
            continue
        name, _, _ = full.removeprefix(OPTIMIZER).rpartition("/")
        parameter = parameters.get(name)
        if parameter is None:
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} has optimizer state of {name!r}, which is "
                "not trained here. Resume with the config that was saved."
            )
        if tuple(parameter.shape) == saved.shape:  # a shard of it, where the parameter is one
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
            f"The saved optimizer has {len(saved)} groups of parameters, this one {len(own)}. "
            "Resume with the config that was saved."
        )
    indices = {name: at for at, (name, _) in enumerate(_parameters(optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in kept.items():
        name, _, key = full.removeprefix(OPTIMIZER).rpartition("/")
        state.setdefault(indices[name], {})[key] = value
    groups = [
        {
            **{key: _like(value, here.get(key)) for key, value in there.items()},
            "params": [indices[name] for name in here["param_names"]],
            "param_names": list(here["param_names"]),
        }
        for here, there in zip(own, saved, strict=True)
    ]
    load_state(optimizer, {"state": state, "param_groups": groups})


def _like(saved: Any, here: Any) -> Any:
    """JSON has no tuples, and optimizers have."""
    return tuple(saved) if isinstance(here, tuple) and isinstance(saved, list) else saved
