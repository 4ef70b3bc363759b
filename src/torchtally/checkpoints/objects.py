"""The state of a training loop's own objects, as tensors and plain data, and back.

    model/NAME                       a module's tensors, under the plain model's names
    optimizer/state/3/exp_avg        an optimizer's state, by parameter number
    scheduler/RANK/..., values/RANK/...   what each rank has of its own
    random/RANK/NAME                 a rank's random states

Everything else is plain data in the manifest, see `packing`.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest, as_plain_json, explain_damaged_state
from torchtally.checkpoints.newest import differences
from torchtally.checkpoints.packing import pack, unpack
from torchtally.checkpoints.plain import as_json
from torchtally.checkpoints.randomness import random_tensors, saved_random
from torchtally.checkpoints.ranks import Ranks
from torchtally.checkpoints.storage import read, torch_dtype
from torchtally.errors import CheckpointError, UsageError

PREFIXES = ("module.", "_orig_mod.")
"""Of names in models wrapped by DDP and torch.compile: a checkpoint has the plain model's."""
VALUES = "values"
"""What the script keeps in the run."""
FOR_ALL = (nn.Module, Optimizer)
"""Objects whose state all ranks share."""


class Objects:
    """What a checkpoint has of these objects, and of values that the script keeps."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        values: dict[str, Any],
        config: Mapping[str, Any],
        ranks: Ranks,
        *,
        about: Mapping[str, Any] | None = None,
        fingerprints: Mapping[str, Any] | None = None,
    ) -> None:
        """`about` is kept beside the state, `fingerprints` are of the data."""
        self.ranks = ranks
        self._about, self.fingerprints = about or {}, as_plain_json(as_json(fingerprints or {}))
        self._objects, self._values = objects, values
        self.config = as_plain_json(as_json(config))
        self._plain: Any = None
        # A scheduler changes the optimizer's later: compared are those that the script gave.
        self._hyperparameters = as_plain_json(
            as_json({name: _hyperparameters(one.param_groups) for name, one in self._optimizers()})
        )

    def parameters(self) -> Iterator[Tensor]:
        """Weights, which must be finite to be saved."""
        modules = (value for value in self._objects.values() if isinstance(value, nn.Module))
        return chain.from_iterable(module.parameters() for module in modules)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of this rank, not copied."""
        tensors: dict[str, Tensor] = {}
        shared = {
            name: pack(_state(value), name, tensors)
            for name, value in self._objects.items()
            if isinstance(value, FOR_ALL)
        }
        own = {
            name: pack(_state(value), f"{name}/{self.ranks.rank:05}", tensors)
            for name, value in [*self._own_objects(), (VALUES, self._values)]
        }
        self._plain = {"objects": shared, "ranks": self.ranks.gather_values(own)}
        return tensors | random_tensors(self.ranks.rank)

    def described(self) -> dict[str, Any]:
        """The manifest's plain data, of the state that `tensors` has taken."""
        state = {**self._about, **self._plain, "hyperparameters": self._hyperparameters}
        return {
            "config": self.config, "state": as_plain_json(state), "fingerprints": self.fingerprints,
        }  # fmt: skip

    def optimizer_changes(self, manifest: Manifest) -> Iterator[tuple[str, Any, Any]]:
        """(key, saved, here) of the hyperparameters that the script gave."""
        for name, groups in self._hyperparameters.items():
            saved = manifest.state["hyperparameters"].get(name, [])
            yield from differences(_by_number(saved), _by_number(groups), f"{name}.")

    def restore(self, checkpoints: Checkpoints, manifest: Manifest) -> dict[str, Tensor]:
        """Load everything; the random states are returned, to be restored by the first step."""
        with explain_damaged_state(manifest):
            shared, per_rank = manifest.state["objects"], manifest.state["ranks"]
            own = per_rank[self.ranks.rank if self.ranks.rank < len(per_rank) else 0]
            _check_objects({*shared, *own} - {VALUES}, {*self._objects}, manifest)
        random_targets = saved_random(manifest, self.ranks.rank)
        live = {
            name: tensor
            for key, value in self._objects.items()
            if isinstance(value, nn.Module)
            for name, tensor in _module_tensors(key, value).items()
        }
        targets = {**live, **random_targets}
        for name in {*_names(shared), *_names(own)} - {*live}:
            targets[name] = self._target(name, manifest)
        _check_live(live, {*_names(shared)}, manifest)
        read(targets, checkpoints, manifest, self.ranks)
        with explain_damaged_state(manifest):
            for name, value in self._objects.items():
                plain = shared[name] if isinstance(value, FOR_ALL) else own[name]
                self._load(name, value, unpack(plain, targets), manifest)
            self._values.update(unpack(own[VALUES], targets))
        return random_targets

    def _load(self, name: str, value: Any, state: Any, manifest: Manifest) -> None:
        if isinstance(value, nn.Module):  # its tensors are in place
            extra = {key: item for key, item in state.items() if not isinstance(item, Tensor)}
            if extra:
                value.load_state_dict({**value.state_dict(), **extra})
        elif isinstance(value, torch.Generator):
            value.set_state(state)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = state
        elif isinstance(value, random.Random):
            value.setstate(state)
        else:
            if isinstance(value, Optimizer):
                state = _with_changes(state, value, manifest, name)
            value.load_state_dict(state)

    def _target(self, name: str, manifest: Manifest) -> Tensor:
        """A buffer for a saved tensor that is not a model's."""
        if name not in manifest.tensors:
            raise CheckpointError(f"The checkpoint of step {manifest.step} lacks {name}.")
        saved = manifest.tensors[name]
        parameter = self._parameter_of(name)
        if parameter is not None and tuple(parameter.shape) == saved.shape:
            # A DTensor parameter gives a DTensor, of this rank's shard.
            return torch.empty_like(parameter, dtype=torch_dtype(saved), requires_grad=False)
        return torch.empty(saved.shape, dtype=torch_dtype(saved))

    def _parameter_of(self, name: str) -> Tensor | None:
        """The parameter that a tensor of an optimizer's state belongs to: NAME/state/3/KEY."""
        key, *path = name.split("/")
        optimizer = self._objects.get(key)
        if not (isinstance(optimizer, Optimizer) and path[:1] == ["state"] and path[1].isdigit()):
            return None
        every = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
        return every[int(path[1])] if int(path[1]) < len(every) else None

    def _optimizers(self) -> Iterator[tuple[str, Optimizer]]:
        return ((n, value) for n, value in self._objects.items() if isinstance(value, Optimizer))

    def _own_objects(self) -> Iterator[tuple[str, Any]]:
        return ((n, value) for n, value in self._objects.items() if not isinstance(value, FOR_ALL))


def check_object(name: str, value: Any) -> None:
    """Raise UsageError for an object whose state is unknown, and for a name that is taken."""
    if not name.isidentifier() or name in (VALUES, "random"):
        raise UsageError(f"objects: {name!r} cannot be the name of an object.")
    has_state = all(
        callable(getattr(value, key, None)) for key in ("state_dict", "load_state_dict")
    )
    generators = (torch.Generator, np.random.Generator, random.Random)
    if not has_state and not isinstance(value, generators):
        raise UsageError(
            f"{name}: a {type(value).__name__} has no state_dict and load_state_dict, so its state "
            "is unknown. A DataLoader has neither: take torchdata's StatefulDataLoader, or draw "
            "each batch as a function of the step."
        )


def _state(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return {_plain_name(key): item for key, item in value.state_dict().items()}
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    return value if isinstance(value, dict) else value.state_dict()


def _plain_name(key: str) -> str:
    while prefix := next((prefix for prefix in PREFIXES if key.startswith(prefix)), ""):
        key = key.removeprefix(prefix)
    return key


def _module_tensors(name: str, module: nn.Module) -> dict[str, Tensor]:
    items = _state(module).items()
    return {f"{name}/{key}": item.detach() for key, item in items if isinstance(item, Tensor)}


def _hyperparameters(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each parameter group."""
    return [
        {
            key: value.item() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key not in ("params", "param_names")
        }
        for group in groups
    ]


def _with_changes(
    state: Mapping[str, Any], optimizer: Optimizer, manifest: Manifest, name: str
) -> dict[str, Any]:
    """An optimizer's saved state, with hyperparameters that the script has changed."""
    own, saved = optimizer.param_groups, state["param_groups"]
    here, there = (
        [group.get("param_names") or len(group["params"]) for group in groups]
        for groups in (own, saved)
    )
    if here != there:
        raise CheckpointError(
            f"{name}: the checkpoint of step {manifest.step} has parameter groups of {there}, and "
            f"there are groups of {here} here. Resume with the saved model and config."
        )
    before = manifest.state["hyperparameters"].get(name, [])
    groups = []
    for group, loaded, was in zip(own, saved, before, strict=True):
        (given,) = _hyperparameters([group])
        changed = [key for key, _, _ in differences(was, as_plain_json(as_json(given)))]
        groups.append({**loaded, **{key: group[key] for key in changed if key in group}})
    return {**state, "param_groups": groups}


def _by_number(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"param_groups[{at}]": group for at, group in enumerate(groups)}


def _names(plain: Any) -> Iterator[str]:
    """The names of the tensors in packed data."""
    if isinstance(plain, dict) and "tensor" in plain:
        yield plain["tensor"]
    elif isinstance(plain, dict | list):
        for item in plain.values() if isinstance(plain, dict) else plain:
            yield from _names(item)


def _check_objects(saved: set[str], here: set[str], manifest: Manifest) -> None:
    for name in sorted(saved ^ here):
        lacks, has = ("script", "checkpoint") if name in saved else ("checkpoint", "script")
        raise UsageError(
            f"{name}: the {lacks} lacks this object, which the {has} has (step {manifest.step}). "
            "Resume with the objects that were saved."
        )


def _check_live(live: Mapping[str, Tensor], saved: set[str], manifest: Manifest) -> None:
    """Refuse what only the checkpoint has of a model; `read` refuses what it lacks."""
    for name in sorted(saved - live.keys()):
        if f"{name.partition('/')[0]}/" in {f"{key.partition('/')[0]}/" for key in live}:
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} has a tensor {name!r} that this model "
                "lacks. Resume with the model that was saved."
            )
