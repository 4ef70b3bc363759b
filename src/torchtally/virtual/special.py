"""Operators that need more than their shapes: values read back, and shapes made of values.

Where every input has a real value the answer is the real one. Where not, a declared stand-in is
given and the observer hears of it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchtally.virtual import private, values
from torchtally.virtual.dispatch import (
    META,
    SPECIAL,
    Handler,
    VirtualDispatch,
    has_value,
    may_have_value,
    tensors_of,
)
from torchtally.virtual.operators import Operator
from torchtally.virtual.storage import virtual_of

aten = torch.ops.aten

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def special(*overloads: OpOverload) -> Callable[[Handler], Handler]:
    """Register a handler for operators."""

    def register(handler: Handler) -> Handler:
        for overload in overloads:
            SPECIAL[overload] = handler
        return handler

    return register


def is_host_only(inputs: list[Tensor]) -> bool:
    return all(virtual_of(tensor) is None for tensor in inputs)


# Values read back.


@special(aten._local_scalar_dense.default)
def read_scalar(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    """`.item()` and all that goes through it: `float(t)`, `if t > 0`, `t.tolist()` of one."""
    tensor = args[0]
    real = values.real_of(tensor)
    if real is not None:
        return operator.overload(real)
    if virtual_of(tensor) is None:
        return operator.overload(tensor)  # the user's own meta tensor: torch's own error
    given = values.placeholder(tensor.dtype)
    mode.observer.placeholder_given(operator.name, str(given))
    return given


@special(aten.equal.default)
def read_equal(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    first, second = args
    if first.shape != second.shape:
        return False
    known = values.real_of(first), values.real_of(second)
    if known[0] is not None and known[1] is not None:
        return operator.overload(*known)
    mode.observer.placeholder_given(operator.name, str(values.PLACEHOLDER_BOOL))
    return values.PLACEHOLDER_BOOL


# Unknown floats are finite: checks for NaN and infinity pass.


@special(aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default)
def assume_finite(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    return assuming(mode, operator, args, kwargs, answer=False)


@special(aten.eq.Scalar, aten.ne.Scalar, aten.eq.Tensor, aten.ne.Tensor)
def compare_finite(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    """`x == x` and `x != inf` are how torch itself spells isnan and isfinite."""
    is_equal = operator.name == "aten.eq"
    if args[0] is args[1]:
        return assuming(mode, operator, args, kwargs, answer=is_equal)
    if values.is_infinite(args[1]):
        return assuming(mode, operator, args, kwargs, answer=not is_equal)
    return mode.run(operator, args, kwargs)


def assuming(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords, *, answer: bool
) -> Any:
    """Run, and let a small result without a value be `answer` throughout."""
    result = mode.run(operator, args, kwargs)
    virtual = virtual_of(result)
    if virtual is not None and virtual.value is None and may_have_value(result):
        values.give_value(result, torch.full(result.shape, answer))
    return result


@special(aten._amp_foreach_non_finite_check_and_unscale_.default)
def unscale_finite(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    """Gradients are taken to be finite, so `found_inf` stays what it was."""
    _gradients, found_inf, _inv_scale = args
    kept = values.real_of(found_inf)
    kept = None if kept is None else kept.clone()
    mode.run(operator, args, kwargs)
    virtual = virtual_of(found_inf)
    if kept is not None and virtual is not None and virtual.value is None:
        values.give_value(found_inf, kept)


# Choices a router makes are taken to be balanced.


@special(aten.topk.default, aten.multinomial.default)
def choose_balanced(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    """Indices nobody can know: every one of the candidates is chosen equally often.

    A mixture of experts then sends each expert its share of tokens, no more and no less.
    """
    result = mode.run(operator, args, kwargs)
    indices = result if isinstance(result, Tensor) else result[1]
    virtual = virtual_of(indices)
    if virtual is None or virtual.value is not None or not may_have_value(indices):
        return result
    dim = args[2] if len(args) > 2 and operator.name == "aten.topk" else -1
    candidates = args[0].shape[dim]
    if candidates and indices.numel():
        chosen = (torch.arange(indices.numel()) % candidates).view(indices.shape)
        values.give_value(indices, chosen)
        mode.observer.placeholder_given(operator.name, "balanced indices")
    return result


# Shapes made of values.


def shaped_by_value(
    mode: VirtualDispatch,
    operator: Operator,
    args: Arguments,
    kwargs: Keywords,
    bound: Callable[[], tuple[Any, str]],
) -> Any:
    """The real result where values are known, else meta tensors of the declared bound."""
    inputs = tensors_of(args, kwargs)
    if is_host_only(inputs):
        return mode.run(operator, args, kwargs)
    home = next(v.home for t in inputs if (v := virtual_of(t)) is not None)
    real = mode.compute(operator, args, kwargs) if all(map(has_value, inputs)) else None
    if real is None:
        result, given = bound()
        mode.observer.placeholder_given(operator.name, given)
    else:
        result = torch.utils._pytree.tree_map_only(Tensor, meta_like, real)
    result = mode.finish(operator, args, kwargs, inputs, result, home)
    if real is not None:
        give_values(result, real)
    return result


def meta_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def give_values(result: Any, real: Any) -> None:
    results = [result] if isinstance(result, Tensor) else result
    reals = [real] if isinstance(real, Tensor) else real
    for tensor, value in zip(results, reals, strict=True):
        if isinstance(tensor, Tensor) and may_have_value(tensor) and not has_value(tensor):
            values.give_value(tensor, value)


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def selected(mode: VirtualDispatch, elements: int) -> tuple[int, str]:
    """How many of so many elements a mask selects, by the declared fraction."""
    count = round(elements * mode.nonzero_fraction)
    return count, f"{count} of {elements} elements selected"


@special(aten.nonzero.default)
def nonzero(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    def bound() -> tuple[Tensor, str]:
        rows, given = selected(mode, args[0].numel())
        dims = args[0].dim()
        # CUDA's kernel writes one row per dimension and returns the transpose.
        return torch.empty((dims, rows), dtype=torch.int64, device=META).t(), given

    return shaped_by_value(mode, operator, args, kwargs, bound)


@special(aten.masked_select.default)
def masked_select(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    def bound() -> tuple[Tensor, str]:
        tensor, mask = args
        elements = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
        count, given = selected(mode, elements)
        return empty(count, dtype=tensor.dtype), given

    return shaped_by_value(mode, operator, args, kwargs, bound)


@special(
    aten._unique2.default, aten._unique.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.unique_dim_consecutive.default,
)  # fmt: skip
def unique(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """At most as many as there are: all different."""

    def bound() -> tuple[tuple[Tensor, ...], str]:
        tensor = args[0]
        has_dim = "dim" in operator.arguments and len(args) > 1 and isinstance(args[1], int)
        shape = tuple(tensor.shape) if has_dim else (tensor.numel(),)
        count = tensor.shape[args[1]] if has_dim else tensor.numel()
        inverse = empty(count) if has_dim else empty(*tensor.shape)
        results = (empty(*shape, dtype=tensor.dtype), inverse, empty(count))
        return results[: len(operator.overload._schema.returns)], f"all {count} different"

    return shaped_by_value(mode, operator, args, kwargs, bound)


@special(aten.repeat_interleave.Tensor)
def repeat_interleave(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> Any:
    def bound() -> tuple[Tensor, str]:
        count = kwargs.get("output_size") or args[0].numel()
        return empty(count, dtype=args[0].dtype), f"{count} elements, each repeated once"

    return shaped_by_value(mode, operator, args, kwargs, bound)


@special(aten.bincount.default)
def bincount(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    def bound() -> tuple[Tensor, str]:
        bins = max(1, kwargs.get("minlength", args[2] if len(args) > 2 else 0))
        return empty(bins), f"{bins} bins"

    return shaped_by_value(mode, operator, args, kwargs, bound)


@special(aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
         aten._index_put_impl_.default)  # fmt: skip
def index(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """A bool mask is turned into indices first, as CUDA does, with the same temporaries."""
    if is_host_only(tensors_of(args, kwargs)):
        return mode.run(operator, args, kwargs)
    indices: list[Tensor | None] = []
    for item in args[1]:
        if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
            with mode:
                indices += item.nonzero().unbind(1)
        else:
            indices.append(item)
    return mode.run(operator, (args[0], indices, *args[2:]), kwargs)


# Between devices.


@special(aten.copy_.default)
def copy(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """Into a real host tensor from a virtual one only a known value can be written."""
    target, source = args[0], args[1]
    if private.is_meta(target) or virtual_of(source) is None:
        return mode.run(operator, args, kwargs)
    real = values.real_of(source)
    if real is not None:
        operator.overload(target, real)
    else:
        mode.observer.placeholder_given(operator.name, "the host tensor keeps its old contents")
    mode.observer.operator_ran(operator, args, kwargs, [target, source], [target])
    return target


@special(aten._pin_memory.default)
def pin_memory(mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """Pinned host memory: a copy, that says so when asked (`is_pinned`)."""
    pinned = args[0].clone() if virtual_of(args[0]) is None else mode.run(
        mode.operator(aten.clone.default), args[:1], {}
    )  # fmt: skip
    pinned.untyped_storage().pinned = True
    return pinned


@special(aten.record_stream.default)
def record_stream(
    mode: VirtualDispatch, operator: Operator, args: Arguments, kwargs: Keywords
) -> None:
    """Keeps the caching allocator from reusing a block too early: nothing to do at tensor level."""
