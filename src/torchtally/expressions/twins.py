"""A value in two forms: on the meta device, and really, as long as its tensors are small.

The form on the meta device has shapes, strides and storages, takes no memory whatever its size, and
decides what is run. What depends on values, as `x[x > 3]`, needs the real form.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST_REAL_ELEMENTS = 1 << 14
"""Of each tensor of a step, for the step to be computed."""
MOST_DRAWN = 4096
"""Elements of a storage whose values are kept."""

READS = frozenset(
    """
    [] allclose argwhere bool() equal float() int() is_nonzero item masked_select nonzero tolist
    unique unique_consecutive where
    """.split()
)
"""What depends on values, and gives no more than a few numbers for each element."""

UNKNOWN = object()
"""The real form of what is too large."""


@dataclass(frozen=True, slots=True)
class Twins:
    """A value on the meta device, and the real one or UNKNOWN. The same where it has no tensors."""

    meta: Any
    real: Any

    @property
    def facts(self) -> Any:
        """The real tensor where there is one: kernels choose strides, too."""
        return self.meta if self.real is UNKNOWN else self.real


def run(name: str, function: Callable[..., Any], operands: Sequence[Twins]) -> Twins:
    """What the function gives in both forms. `name` is its name; "[]" is an index."""
    metas = [operand.meta for operand in operands]
    is_known = all(operand.real is not UNKNOWN for operand in operands)
    try:
        with torch.device("meta"):
            meta = function(*metas)
    except (RuntimeError, ValueError):
        # "Data-dependent": torch has half a dozen types and texts for it.
        if name not in READS or not is_known or not tensors_of(metas):
            raise
        real = _real(function, operands)
        return Twins(_on_meta(real), real)
    tensors = tensors_of([meta, *metas])
    if not is_known or any(tensor.numel() > MOST_REAL_ELEMENTS for tensor in tensors):
        return Twins(meta, UNKNOWN)
    return Twins(meta, _real(function, operands) if tensors else meta)


def _real(function: Callable[..., Any], operands: Sequence[Twins]) -> Any:
    with torch.device("cpu"):
        return function(*(operand.real for operand in operands))


def together(kind: type, twins: Sequence[Twins]) -> Twins:
    """A list or a tuple of values."""
    is_known = all(twin.real is not UNKNOWN for twin in twins)
    real = kind(twin.real for twin in twins) if is_known else UNKNOWN
    return Twins(kind(twin.meta for twin in twins), real)


def apart(twins: Twins) -> list[Twins]:
    """The values of a list or a tuple."""
    reals = [UNKNOWN] * len(twins.meta) if twins.real is UNKNOWN else twins.real
    return [Twins(*pair) for pair in zip(twins.meta, reals, strict=True)]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, which may be a list of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, tuple | list):
        return type(value)(map(_on_meta, value))
    return value


def values_of(twins: Twins) -> tuple[float | str, ...] | None:
    """What the storage of a tensor holds, read as the tensor's dtype. None where it is large."""
    tensor = twins.real
    if tensor is UNKNOWN:
        return None
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    if count > MOST_DRAWN:
        return None
    whole = tensor.new_empty(0).set_(storage, 0, (count,), (1,))
    if tensor.dtype.is_complex:
        return tuple(map(str, whole.tolist()))
    is_float8 = tensor.dtype.is_floating_point and tensor.element_size() == 1
    return tuple((whole.float() if is_float8 else whole).tolist())
