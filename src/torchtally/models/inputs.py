"""What a model is called with: tensors, or descriptions of them, moved to the virtual GPU."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.errors import UsageError, did_you_mean
from torchtally.models.placing import TensorDevices

FORM = re.compile(r"(?P<sizes>\d+(x\d+)*)?(:(?P<dtype>\w+))?", re.ASCII)
EXAMPLE = "4x512:int64 or 8x3x224x224"
MOST_SIZES = 16


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input by its shape and dtype: 4x512:int64.

    Whole numbers are 0, which every embedding has a row for; booleans are true; of floats no value
    is known.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None: float32, or the weights' where they are in another precision."""

    def on_gpu(self, weight_dtype: torch.dtype | None) -> Tensor:
        dtype = self.dtype or weight_dtype or torch.float32
        if dtype.is_floating_point or dtype.is_complex:
            return torch.empty(self.shape, dtype=dtype, device="cuda")
        value = 1 if dtype is torch.bool else 0
        return torch.full(self.shape, value, dtype=dtype, device="cuda")

    def __str__(self) -> str:
        return _text(self.shape, self.dtype)


def input_spec(text: str) -> InputSpec:
    """The input that "4x512:int64" describes; without a dtype it is of floats.

    Raises UsageError for anything else.
    """
    match = FORM.fullmatch(text.strip())
    sizes = match["sizes"] if match else None
    if match is None or not text.strip() or (sizes or "").count("x") >= MOST_SIZES:
        raise UsageError(f"{text[:80]!r} is not an input. These work: {EXAMPLE}.")
    shape = tuple(map(int, sizes.split("x"))) if sizes else ()
    if any(size > 2**40 for size in shape):
        raise UsageError(f"{text[:80]!r} is too large for an input. These work: {EXAMPLE}.")
    return InputSpec(shape, _dtype(match["dtype"], text))


def _dtype(name: str | None, text: str) -> torch.dtype | None:
    if name is None:
        return None
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        names = {key for key, value in vars(torch).items() if isinstance(value, torch.dtype)}
        raise UsageError(f"{text[:80]!r}: unknown dtype. {did_you_mean(name, sorted(names))}")
    return dtype


@dataclass(frozen=True, slots=True)
class Inputs:
    """Those of one call of a model."""

    positional: Sequence[Any]
    named: Mapping[str, Any]

    @classmethod
    def of(cls, positional: Sequence[Any], named: Mapping[str, Any]) -> "Inputs":
        """Texts are descriptions. Raises UsageError for those that describe nothing."""
        return cls(
            tuple(_describe(value) for value in positional),
            {name: _describe(value) for name, value in named.items()},
        )

    def on_gpu(self, devices: TensorDevices, weight_dtype: torch.dtype | None) -> "Inputs":
        """Inputs as the model is called with them."""
        memo: dict[int, Any] = {id(tensor): devices.on_gpu(tensor) for tensor in self.tensors}

        def move(value: Any) -> Any:
            # A model may change what it is given: a cache of keys and values.
            if isinstance(value, InputSpec):
                return value.on_gpu(weight_dtype)
            if type(value) is dict:
                return {name: move(inner) for name, inner in value.items()}
            return copy.deepcopy(value, memo)

        return Inputs(
            tuple(map(move, self.positional)),
            {name: move(value) for name, value in self.named.items()},
        )

    @property
    def tensors(self) -> list[Tensor]:
        leaves = private.tree_leaves((tuple(self.positional), dict(self.named)))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def __str__(self) -> str:
        parts = [_name(value) for value in self.positional]
        parts += [f"{name} {_name(value)}" for name, value in self.named.items()]
        return ", ".join(parts)


def _describe(value: Any) -> Any:
    return input_spec(value) if isinstance(value, str) else value


def _name(value: Any) -> str:
    if isinstance(value, Tensor):
        return _text(tuple(value.shape), value.dtype)
    return str(value) if isinstance(value, InputSpec) else type(value).__name__


def _text(shape: Sequence[int], dtype: torch.dtype | None) -> str:
    sizes = "x".join(map(str, shape)) or "scalar"
    return sizes if dtype is None else f"{sizes}:{str(dtype).removeprefix('torch.')}"
