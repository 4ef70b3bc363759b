"""The state of a training loop's own objects, as tensors and plain data, and back.

    model/NAME                       a module's tensors, under the plain model's names
    optimizer/state/3/exp_avg        an optimizer's state, by parameter number
    scheduler/RANK/..., values/RANK/...   what each rank has of its own
    random/RANK/torch                its random states

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
from torchtally.checkpoints.manifest import Manifest, explain_damaged_state
from torchtally.checkpoints.newest import Change, differences
from torchtally.checkpoints.packing import pack, unpack
from torchtally.checkpoints.plain import Say, as_json
from torchtally.checkpoints.randomness import random_states
from torchtally.checkpoints.ranks import Ranks
from torchtally.checkpoints.storage import read, torch_dtype
from torchtally.errors import CheckpointError, UsageError

PREFIXES = ("module.", "_orig_mod.")
"""Of names in models wrapped by DDP and torch.compile: a checkpoint has the plain model's."""
VALUES = "values"
"""What the script keeps in the run."""
RANDOM = "random"
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
        """Objects of a loop; `about` is kept beside the state, `fingerprints` are of the data."""
        self.ranks = ranks
        self._about, self.fingerprints = about or {}, as_json(fingerprints or {})
        self._objects, self._values = objects, values
        self.config = as_json(config)
        self._plain: Any = None
        # A scheduler changes the optimizer's later: compared are those that the script gave.
        self._hyperparameters = as_json(
            {name: _hyperparameters(one.param_groups) for name, one in self._optimizers()}
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
            for name, value in [
                *self._own_objects(),
                (VALUES, self._values),
                (RANDOM, random_states()),
            ]
        }
        self._plain = {"objects": shared, "ranks": self.ranks.gather_values(own)}
        return tensors

    def manifest_data(self) -> dict[str, Any]:
        """The manifest's plain data, of the state that `tensors` has taken."""
        state = {**self._about, **self._plain, "hyperparameters": self._hyperparameters}
        return {"config": self.config, "state": state, "fingerprints": self.fingerprints}

    def changes(self, manifest: Manifest) -> list[Change]:
        """Changes of the config, the data's fingerprints, and the hyperparameters that the script
        gave, which may have changed under the same config by another version's defaults.
        """
        changes = [
            *differences(manifest.config, self.config),
            *differences(manifest.fingerprints, self.fingerprints, "fingerprints."),
        ]
        with explain_damaged_state(manifest):
            for name, groups in self._hyperparameters.items():
                saved = manifest.state["hyperparameters"].get(name, {})
                changes += differences(saved, groups, f"{name}.")
        return changes

    def restore(self, checkpoints: Checkpoints, manifest: Manifest, say: Say) -> dict[str, Any]:
        """Load everything; the random states are returned, to be restored by the first step. They
        are empty if this rank did not exist.
        """
        with explain_damaged_state(manifest):
            shared, per_rank = manifest.state["objects"], manifest.state["ranks"]
            is_new = self.ranks.rank >= len(per_rank)
            own = per_rank[0 if is_new else self.ranks.rank]
            _check_objects({*shared, *own} - {VALUES, RANDOM}, {*self._objects}, manifest)
        targets: dict[str, Tensor] = {}
        for key, value in self._objects.items():
            if isinstance(value, nn.Module):
                pack(_state(value), key, targets)
        for name in sorted({*_names(shared), *_names(own)} - {*targets}):
            targets[name] = self._target(name, manifest)
        read(targets, checkpoints, manifest, self.ranks)
        with explain_damaged_state(manifest):
            for name, value in self._objects.items():
                plain = shared[name] if isinstance(value, FOR_ALL) else own[name]
                self._load(name, value, unpack(plain, targets), manifest)
            self._values.update(unpack(own[VALUES], targets))
            states: dict[str, Any] = unpack(own[RANDOM], targets)
        if self.ranks.size != manifest.ranks:
            say(
                f"step {manifest.step} was saved by {manifest.ranks} ranks, resuming on "
                f"{self.ranks.size}: results agree to rounding, random numbers (dropout) differ."
            )
        return {} if is_new else states

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
        if isinstance(self._objects.get(name.partition("/")[0]), nn.Module):
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} has a tensor {name!r} that this model "
                "lacks. Resume with the model that was saved."
            )
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
    if not name.isidentifier() or name in (VALUES, RANDOM):
        raise UsageError(f"objects: {name!r} cannot be the name of an object.")
    has_state = all(
        callable(getattr(value, key, None)) for key in ("state_dict", "load_state_dict")
    )
    generators = (torch.Generator, np.random.Generator, random.Random)
    if not has_state and not isinstance(value, generators):
        raise UsageError(
            f"{name}: a {type(value).__name__} has neither state_dict nor load_state_dict, so "
            "its state cannot be saved. For data use torchdata's StatefulDataLoader, or draw "
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


def _hyperparameters(groups: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Hyperparameters of each parameter group."""
    return {
        f"param_groups[{at}]": {
            key: value.item() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key not in ("params", "param_names")
        }
        for at, group in enumerate(groups)
    }


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
    before = manifest.state["hyperparameters"].get(name, {})
    here_now = as_json(_hyperparameters(own))
    groups = [
        {**loaded, **{key: group[key] for key, _, _ in differences(before[at], here_now[at])
                      if key in group}}
        for at, group, loaded in zip(here_now, own, saved, strict=True)
    ]  # fmt: skip
    return {**state, "param_groups": groups}


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
