"""Operators that need values: values read back, and shapes that depend on values.

If every input has a value, the result is real. Otherwise it is a declared assumption, of which the
observer is notified.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.torch_private import OpOverload
from torchtally.virtual import kernels, sparse, values
from torchtally.virtual.device_checks import check_same_device
from torchtally.virtual.dispatch import SPECIAL, Handler, VirtualDispatch
from torchtally.virtual.invocation import META, Invocation, tensors_in
from torchtally.virtual.storage import is_pinned, is_sparse, pin, virtual_of
from torchtally.virtual.value_keeper import give_values, has_value, may_have_value

aten = torch.ops.aten


def special(*overloads: OpOverload) -> Callable[[Handler], Handler]:
    """Register a handler for operators."""

    def register(handler: Handler) -> Handler:
        for overload in overloads:
            SPECIAL[overload] = handler
        return handler

    return register


# Gradients that meet.


@special(aten.add.Tensor)
def add(mode: VirtualDispatch, call: Invocation) -> Any:
    """An addition that C++ does in place without a dispatch mode, and out of place with one.

    It asks `isTensorSubclassLike` (ATen/TensorSubclassLikeUtils.h), which is true under any mode.
    Here the first operand is returned as the sum, as on a real device.
    """
    caller = sys._getframe(CALLER)
    if caller.f_code is private.engine_code():
        is_in_place = accumulates_in_place(mode, call)
    else:
        kernel = caller.f_back
        is_in_place = kernel is not None and kernel.f_code is kernels.plain_products.__code__
    return mode.call(aten.add_.Tensor, *call.args) if is_in_place else mode.run(call)


def accumulates_in_place(mode: VirtualDispatch, call: Invocation) -> bool:
    """As `can_accumulate_inplace` of torch/csrc/autograd/input_buffer.cpp: gradients that meet.

    The sums of a node's own formula come here by the same road. There the first summand is one of
    the node's temporaries, while a gradient that waits was made by another node, or by this one for
    an input that it has twice (`x * x`).
    """
    node = private.current_autograd_node()
    if node is None or torch.is_grad_enabled() or len(call.inputs) != 2 or call.kwargs:
        return False
    tensor, virtual = call.inputs[0], call.virtuals[0]
    if virtual is None or not is_dense(tensor) or not private.is_held_once(tensor, REFERENCES):
        return False
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    return len(set(edges)) < len(edges) or not mode.was_made_by(virtual, node)


CALLER = 2
"""Frames from a handler to the operator's caller: the mode is between."""
REFERENCES = 3
"""Python's references to an argument there: the call's arguments, its inputs, the name."""


def is_dense(tensor: Tensor) -> bool:
    """Its elements fill a part of storage without gaps or overlap, in some order."""
    step = 1
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n != 1:
            if stride != step:
                return False
            step *= n
    return True


# Values read back.


@special(aten._local_scalar_dense.default)
def read_scalar(mode: VirtualDispatch, call: Invocation) -> Any:
    """`.item()` and all that goes through it: `float(t)`, `if t > 0`, `t.tolist()` of one."""
    tensor = call.args[0]
    virtual = virtual_of(tensor)
    if virtual is not None:
        mode.host_reads(virtual)
    real = values.real_of(tensor)
    if real is not None:
        return call.operator.overload(real)
    if virtual is None:
        return call.operator.overload(tensor)  # the user's own meta tensor: torch's own error
    value = values.placeholder(tensor.dtype)
    mode.observer.placeholder_given(call.operator.name, str(value))
    return value


@special(aten.equal.default, aten.allclose.default)
def read_equal(mode: VirtualDispatch, call: Invocation) -> Any:
    check_same_device(call)
    for virtual in filter(None, call.virtuals[:1]):
        mode.host_reads(virtual)
    arguments = values.real_arguments(call.args, call.kwargs)
    if arguments is not None:
        return call.operator.overload(*arguments[0], **arguments[1])
    mode.observer.placeholder_given(call.operator.name, str(values.PLACEHOLDER_BOOL))
    return values.PLACEHOLDER_BOOL


# Unknown floats are finite: checks for NaN and infinity pass.


@special(aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default)
def assume_finite(mode: VirtualDispatch, call: Invocation) -> Any:
    return run_assuming(mode, call, answer=False)


@special(aten.eq.Scalar, aten.ne.Scalar, aten.eq.Tensor, aten.ne.Tensor)
def compare_finite(mode: VirtualDispatch, call: Invocation) -> Any:
    """`x == x` and `x != inf` are how torch itself spells isnan and isfinite."""
    is_equal = call.operator.name == "aten.eq"
    if call.args[0] is call.args[1]:
        return run_assuming(mode, call, answer=is_equal)
    if values.is_infinite(call.args[1]):
        return run_assuming(mode, call, answer=not is_equal)
    return mode.run(call)


def run_assuming(mode: VirtualDispatch, call: Invocation, *, answer: bool) -> Any:
    """Run, and let a small result without a value be `answer` throughout."""
    result = mode.run(call)
    virtual = virtual_of(result)
    if virtual is not None and virtual.value is None and may_have_value(result):
        values.give_value(result, torch.full(result.shape, answer))
    return result


@special(aten._amp_foreach_non_finite_check_and_unscale_.default)
def unscale_finite(mode: VirtualDispatch, call: Invocation) -> Any:
    """Gradients are taken to be finite, so `found_inf` stays what it was."""
    _gradients, found_inf, _inv_scale = call.args
    kept = values.real_of(found_inf)
    kept = None if kept is None else kept.clone()
    mode.run(call)
    virtual = virtual_of(found_inf)
    if kept is not None and virtual is not None and virtual.value is None:
        values.give_value(found_inf, kept)


# Choices a router makes are taken to be balanced.


@special(aten.topk.default, aten.multinomial.default)
def choose_balanced(mode: VirtualDispatch, call: Invocation) -> Any:
    """Unknown indices: every candidate is assumed to be chosen equally often.

    Each expert of a mixture then gets an equal share of the tokens.
    """
    result = mode.run(call)
    indices = result if isinstance(result, Tensor) else result[1]
    virtual = virtual_of(indices)
    if virtual is None or virtual.value is not None or not may_have_value(indices):
        return result
    dim = call.args[2] if len(call.args) > 2 and call.operator.name == "aten.topk" else -1
    candidates = call.args[0].shape[dim]
    if candidates and indices.numel():
        chosen = (torch.arange(indices.numel()) % candidates).view(indices.shape)
        values.give_value(indices, chosen)
        mode.observer.placeholder_given(call.operator.name, "balanced indices")
    return result


# Shapes made of values.


def shaped_by_value(
    mode: VirtualDispatch,
    call: Invocation,
    bound: Callable[[], tuple[Any, str]],
) -> Any:
    """The real result where values are known, else meta tensors of the declared bound."""
    if not call.is_virtual:
        return mode.run(call)
    real = mode.values.compute(call) if all(map(has_value, call.inputs)) else None
    if real is None:
        result, assumption = bound()
        mode.observer.placeholder_given(call.operator.name, assumption)
    else:
        result = private.tree_map_only(Tensor, meta_like, real)
    result = mode.finish(call, result, call.home)
    if real is not None:
        give_values(tensors_in(result), tensors_in(real))
    return result


def meta_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def count_selected(mode: VirtualDispatch, elements: int) -> tuple[int, str]:
    """How many of so many elements a mask selects, by the declared fraction."""
    count = round(elements * mode.nonzero_fraction)
    return count, f"{count} of {elements} elements selected"


@special(aten.nonzero.default)
def nonzero(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str]:
        rows, assumption = count_selected(mode, call.args[0].numel())
        dims = call.args[0].dim()
        # CUDA's kernel writes one row per dimension and returns the transpose.
        return torch.empty((dims, rows), dtype=torch.int64, device=META).t(), assumption

    return shaped_by_value(mode, call, bound)


@special(
    aten.quantize_per_tensor.default, aten.quantize_per_channel.default,
    aten.quantize_per_tensor_dynamic.default,
)  # fmt: skip
def refuse_quantized(mode: VirtualDispatch, call: Invocation) -> Any:
    """Tensors of quantised dtypes have no meta form."""
    if not call.is_virtual:
        return mode.run(call)
    raise UnsupportedError(
        f"tally does not simulate {call.operator.name} on a GPU: quantised dtypes (torch.qint8) "
        "run on the CPU alone.\nQuantise with torchao, or train with fake quantisation."
    )


@special(aten._to_sparse.default)
def to_sparse(mode: VirtualDispatch, call: Invocation) -> Any:
    """A COO tensor: a value and its indices for each element that is not zero."""
    dense = call.args[0]
    if not call.is_virtual or is_sparse(dense):
        return mode.run(call)
    real = values.real_of(dense)
    if real is None:
        count, assumption = count_selected(mode, dense.numel())
        mode.observer.placeholder_given(call.operator.name, assumption)
    else:
        count = int(real.count_nonzero())
    parts = empty(dense.dim(), count), empty(count, dtype=dense.dtype)
    indices, elements = mode.finish(call, parts, call.home)
    return sparse.coo(indices, elements, dense.shape, is_coalesced=True)


@special(aten.masked_select.default)
def masked_select(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str]:
        tensor, mask = call.args
        elements = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
        count, assumption = count_selected(mode, elements)
        return empty(count, dtype=tensor.dtype), assumption

    return shaped_by_value(mode, call, bound)


@special(
    aten._unique2.default, aten._unique.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.unique_dim_consecutive.default,
)  # fmt: skip
def unique(mode: VirtualDispatch, call: Invocation) -> Any:
    """At most as many as there are: all different."""

    def bound() -> tuple[tuple[Tensor, ...], str]:
        tensor = call.args[0]
        has_dim = (
            "dim" in call.operator.arguments
            and len(call.args) > 1
            and isinstance(call.args[1], int)
        )
        shape = tuple(tensor.shape) if has_dim else (tensor.numel(),)
        count = tensor.shape[call.args[1]] if has_dim else tensor.numel()
        inverse = empty(count) if has_dim else empty(*tensor.shape)
        results = (empty(*shape, dtype=tensor.dtype), inverse, empty(count))
        return results[
            : len(private.schema(call.operator.overload).returns)
        ], f"all {count} different"

    return shaped_by_value(mode, call, bound)


@special(aten.repeat_interleave.Tensor)
def repeat_interleave(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str]:
        count = call.kwargs.get("output_size") or call.args[0].numel()
        return empty(count, dtype=call.args[0].dtype), f"{count} elements, each repeated once"

    return shaped_by_value(mode, call, bound)


@special(aten.bincount.default)
def bincount(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str]:
        bins = max(1, call.kwargs.get("minlength", call.args[2] if len(call.args) > 2 else 0))
        return empty(bins), f"{bins} bins"

    return shaped_by_value(mode, call, bound)


@special(aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
         aten._index_put_impl_.default)  # fmt: skip
def index(mode: VirtualDispatch, call: Invocation) -> Any:
    """A bool mask is turned into indices first, as CUDA does, with the same temporaries."""
    if not call.is_virtual:
        return mode.run(call)
    check_index_device(mode, call)
    indices: list[Tensor | None] = []
    for item in call.args[1]:
        if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
            with mode:
                indices += item.nonzero().unbind(1)
        else:
            indices.append(item)
    return mode.call(call.operator.overload, call.args[0], indices, *call.args[2:], **call.kwargs)


def check_index_device(mode: VirtualDispatch, call: Invocation) -> None:
    """Raise PyTorch's own error when a host tensor is indexed by a device tensor."""
    indexed, *indices = call.virtuals
    if indexed is not None and indexed.home is not mode.host:
        return
    if any(virtual is not None and virtual.home is not mode.host for virtual in indices):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
        )


# Packed sequences: lengths are on the host, and their values decide the shape.


@special(aten._pack_padded_sequence.default)
def pack_padded_sequence(mode: VirtualDispatch, call: Invocation) -> Any:
    """Packed data of one row per step of each sequence, and the real batch sizes on the host."""
    if not call.is_virtual:
        return mode.run(call)
    padded, lengths, batch_first = call.args
    outline = torch.zeros((*padded.shape[:2], 1))
    rows, batch_sizes = call.operator.overload(outline, lengths, batch_first)
    data = torch.empty((len(rows), *padded.shape[2:]), dtype=padded.dtype, device=META)
    return mode.finish(call, (data, batch_sizes), call.home)


@special(aten._pack_padded_sequence_backward.default)
def pack_padded_sequence_backward(mode: VirtualDispatch, call: Invocation) -> Any:
    if not call.is_virtual:
        return mode.run(call)
    gradient, size = call.args[0], call.args[1]
    result = torch.empty(tuple(size), dtype=gradient.dtype, device=META)
    return mode.finish(call, result, call.home)


# Between devices.


@special(aten.copy_.default)
def copy(mode: VirtualDispatch, call: Invocation) -> Any:
    """Into a real host tensor from a virtual one only a known value can be written."""
    target, source = call.args[0], call.args[1]
    if private.is_meta(target) or virtual_of(source) is None:
        return mode.run(call)
    real = values.real_of(source)
    if real is not None:
        call.operator.overload(target, real)
    else:
        mode.observer.placeholder_given(
            call.operator.name, "the host tensor keeps its old contents"
        )
    mode.notify(call, [target], call.home)
    return target


@special(aten.is_pinned.default)
def read_pinned(mode: VirtualDispatch, call: Invocation) -> bool:
    return is_pinned(call.args[0])


@special(aten.pin_memory.default, aten._pin_memory.default)
def pin_memory(mode: VirtualDispatch, call: Invocation) -> Any:
    """Pinned host memory: a copy whose `is_pinned` is true, or what is pinned already.

    Under inference mode the composition `pin_memory` arrives whole.
    """
    if is_pinned(call.args[0]):
        return call.args[0]
    pinned = mode.call(aten.clone.default, call.args[0])
    pin(pinned)
    return pinned


@special(aten.record_stream.default)
def record_stream(mode: VirtualDispatch, call: Invocation) -> None:
    """Keeps the caching allocator from reusing a block too early: nothing to do at tensor level."""
