"""The names that an expression may use: those of torch that compute with tensors, a few others."""

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from torchtally.errors import UsageError

FACTORIES = frozenset(
    """
    arange as_strided as_tensor broadcast_shapes empty empty_permuted empty_strided eye full
    linspace logspace normal ones rand rand_like randint randint_like randn randn_like randperm
    scalar_tensor sigmoid tanh tensor tril_indices triu_indices unflatten vander zeros
    """.split()
)
"""Functions of torch that its table of overridable ones does not have."""
SUBMODULES = frozenset({"nn", "functional", "linalg", "fft", "special"})
REFUSED = frozenset(
    """
    apply_ autocast backward combinations cpu cuda gru hpu ipu lstm map2_ map_ mtia numpy pin_memory
    register_hook rnn_relu rnn_tanh share_memory_ storage type untyped_storage xpu
    """.split()
)
"""Those that leave the tensor's device, run code of their own, or take time without a bound."""
OF_MATH = frozenset({"ceil", "exp", "floor", "gcd", "isqrt", "log", "log2", "prod", "sqrt"})
OF_EINOPS = frozenset({"einsum", "rearrange", "reduce", "repeat"})


@cache
def functions() -> Mapping[object, frozenset[str]]:
    """Functions by module (or torch.Tensor): the names of what computes with tensors."""
    table = torch.overrides.get_overridable_functions()
    names = {
        owner: frozenset(getattr(function, "__name__", "") for function in table[owner])
        for owner in (torch, torch.nn.functional, torch.linalg, torch.fft, torch.special)
    }
    names[torch] |= FACTORIES | frozenset(
        getattr(function, "__name__", "") for function in table[torch.functional]
    )
    return MappingProxyType({owner: listed - REFUSED for owner, listed in names.items()})


def of_module(module: ModuleType, name: str) -> Any:
    """An attribute of torch or one of its modules. Raises UsageError for what is not allowed."""
    value = getattr(module, name, None)
    known = OF_MATH if module is math else functions().get(module, frozenset())
    if name in known:
        return value
    if isinstance(value, torch.dtype | torch.memory_format | float):
        return value
    if isinstance(value, ModuleType) and name in SUBMODULES:
        return value
    what = f"{module.__name__}.{name}"
    if value is None:
        near = get_close_matches(name, known, n=3)
        remedy = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"{what} does not exist.{remedy}")
    raise UsageError(
        f"{what} cannot be used here: expressions are made of functions that compute with tensors."
    )


MODULES: Mapping[str, ModuleType] = {"torch": torch, "F": torch.nn.functional, "math": math}
BUILTINS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "bool": bool, "float": float, "int": int, "len": len, "list": list, "max": max,
    "min": min, "range": range, "round": round, "slice": slice, "sum": sum, "tuple": tuple,
}  # fmt: skip


def of_einops(name: str) -> Any:
    """A function of einops. Raises UsageError where it is not installed."""
    try:
        return getattr(import_module("einops"), name)
    except ImportError:
        raise UsageError(
            f"{name} needs einops, which is not installed: pip install einops"
        ) from None
