"""Parameters of which a rank has a part: DTensors, FSDP1's flat parameters, ZeRO 3's shards, and
the modules that they belong to.
"""

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import Tensor, nn

_WRAPPERS = "torch.distributed.fsdp"
_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_HANDLES = "torch.distributed.fsdp._runtime_utils"
FSDP_PARAMETERS, CHUNK = "torch.distributed.fsdp._fully_shard._fsdp_param", "_chunk_with_empty"
"""A module that the script may import, and its function that cuts a tensor into shards."""


def whole_elements(tensor: Tensor) -> int:
    """Elements of the parameter that a rank has a part of; 0 of a tensor that is whole."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(tensor, module.DTensor):
        return int(tensor.numel())
    size = getattr(tensor, "_unpadded_unsharded_size", None)
    return 0 if size is None else int(size.numel())


def shard_of(parameter: Tensor) -> tuple[Tensor, int] | None:
    """The shard that stays of a parameter whose own data come and go, and the whole's elements.

    DeepSpeed's ZeRO 3 names both at the parameter (its `runtime/zero/partition_parameters.py`).
    None of any other parameter.
    """
    shard, size = getattr(parameter, "ds_tensor", None), getattr(parameter, "ds_numel", None)
    return (shard, int(size)) if isinstance(shard, Tensor) and size is not None else None


def flat_parameters(module: nn.Module) -> Iterator[Tensor]:
    """The flat parameters of modules that FSDP1 wraps: `use_orig_params` hides them."""
    wrapper = sys.modules.get(_WRAPPERS)
    if wrapper is None:
        return
    for child in module.modules():
        if isinstance(child, wrapper.FullyShardedDataParallel):
            flat = child._flat_param
            if flat is not None:
                yield flat


def class_name(module: nn.Module) -> str:
    """Name of the class that the script gave the module: FSDP2 puts one of its own in its stead."""
    wrapper, kind = sys.modules.get(_WRAPPERS), type(module)
    sharded = getattr(wrapper, "FSDPModule", None)
    if sharded is None or sharded not in kind.__bases__:
        return kind.__name__
    return next(base.__name__ for base in kind.__bases__ if base is not sharded)


class ServedModules:
    """Knows FSDP's code, which gathers and reduces for one module at a time."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}
        """By a function's code: its variable that knows the module."""
        self._is_complete = False

    def _learn(self) -> None:
        groups, handles = sys.modules.get(_GROUPS), sys.modules.get(_HANDLES)
        if groups is not None:
            for code in _codes_of(groups.FSDPParamGroup):
                self._owners[id(code)] = "self"
        if handles is not None:
            for code in _codes_of(handles):
                if "handle" in code.co_varnames[: code.co_argcount]:
                    self._owners[id(code)] = "handle"
        self._is_complete = groups is not None and handles is not None

    def module_served(self, frame: FrameType | None, ends: frozenset[int]) -> Any:
        """The module for which FSDP runs the code at a frame; None for any other code.

        The walk up the stack stops at code whose id is in `ends`: what a compiler has written may
        have constants that are not hashable.
        """
        if not self._is_complete:
            self._learn()
        while frame is not None and id(frame.f_code) not in ends:
            name = self._owners.get(id(frame.f_code))
            if name is not None:
                owner = frame.f_locals.get(name)
                modules = getattr(owner, "modules", None)
                return modules[0] if modules else getattr(owner, "_fully_sharded_module", None)
            frame = frame.f_back
        return None


def _codes_of(place: Any) -> Iterator[CodeType]:
    """Codes of all functions of a class or a module."""
    for value in vars(place).values():
        if isinstance(value, FunctionType):
            yield inspect.unwrap(value).__code__
