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
from torchtally.virtual import kernels, values
from torchtally.virtual.device_checks import check_same_device
from torchtally.virtual.dispatch import SPECIAL, Handler, VirtualDispatch
from torchtally.virtual.facts import (
    FALLING,
    Facts,
    assumption_of,
    facts_or_range,
    is_loss,
    keep_facts,
    readable,
    routing,
    substitute,
)
from torchtally.virtual.facts.facts import range_of
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import is_pinned, pin, virtual_of
from torchtally.virtual.value_keeper import may_have_value

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
    """Whether gradients that meet are added in place, as by `can_accumulate_inplace` of
    torch/csrc/autograd/input_buffer.cpp.

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


@special(aten._embedding_bag_backward.default)
def embedding_bag_backward(mode: VirtualDispatch, call: Invocation) -> Any:
    """A sparse gradient's parts are made by a composition, which CUDA runs (EmbeddingBag.cpp)."""
    if not (call.is_virtual and call.args[EMBEDDING_BAG_IS_SPARSE]):
        return mode.run(call)
    grad, indices, offsets, bags, sizes, _, *rest = call.args
    with mode:
        return private.run_composite_kernel(
            aten._embedding_bag_sparse_backward.default,
            *(grad, indices, offsets, bags, sizes, *rest[:3], *rest[4:]),
        )


EMBEDDING_BAG_IS_SPARSE = 9
"""The place of `sparse` among the arguments of `_embedding_bag_backward`."""


# Values read back.


@special(aten._local_scalar_dense.default)
def read_scalar(mode: VirtualDispatch, call: Invocation) -> Any:
    """`.item()` and all that goes through it: `float(t)`, `if t > 0`, `t.tolist()` of one."""
    tensor = call.args[0]
    virtual = virtual_of(tensor)
    if virtual is not None:
        mode.host_reads(virtual)
    if is_loss(tensor):
        mode.values.losses.give(tensor)  # of compiled code, of a graph that was replayed
    real = readable(tensor)
    assumption = assumption_of(call.virtuals)
    if real is not None and assumption in (None, FALLING):
        mode.values.note_read(call, assumption)
        return call.operator.overload(real)
    if virtual is None:
        return call.operator.overload(tensor)  # the user's own meta tensor: torch's own error
    value = substitute(tensor) if real is None else call.operator.overload(real)
    passing = mode.observer.passing_answer(value)
    if passing is not None:
        # A value that is assumed is no bound.
        facts = facts_or_range(tensor) if real is None else range_of(tensor.dtype)
        value = within_facts(facts, tensor.dtype, passing)
    elif real is not None:
        mode.values.note_read(call, assumption)
        return value
    mode.observer.placeholder_given(call.operator.name, str(value))
    return value


def within_facts(facts: Facts, dtype: torch.dtype, number: float) -> float:
    """The number, or the nearest that an element can be, as its dtype has it."""
    number = min(max(number, facts.lower), facts.upper)
    if dtype is torch.bool:
        return bool(number)
    return float(number) if dtype.is_floating_point else round(number)


@special(aten.equal.default, aten.allclose.default)
def read_equal(mode: VirtualDispatch, call: Invocation) -> Any:
    check_same_device(call)
    for virtual in filter(None, call.virtuals[:1]):
        mode.host_reads(virtual)
    answer = are_equal(mode, call)
    if answer is None:
        # A script that asks whether tensors are close checks itself, and stops where they are not.
        answer = call.operator.name == "aten.allclose" or values.PLACEHOLDER_BOOL
        passing = mode.observer.passing_answer(answer)
        answer = answer if passing is None else passing
        mode.observer.placeholder_given(call.operator.name, str(answer))
    else:
        mode.values.note_read(call, assumption_of(call.virtuals))
    return answer


def are_equal(mode: VirtualDispatch, call: Invocation) -> bool | None:
    """Whether tensors are equal, by values where they are kept, else by facts; a tensor of finite
    elements equals itself.
    """
    arguments = values.real_arguments(call.args, call.kwargs)
    if arguments is not None:
        answer: bool = call.operator.overload(*arguments[0], **arguments[1])
        return answer
    one, other = call.args[:2]
    if one.shape != other.shape:
        return False
    if is_same(one, other) and facts_or_range(one).is_finite:
        return True
    elements = [readable(tensor) for tensor in (one, other)]
    if None not in elements and one.numel():
        return bool(call.operator.overload(*elements, *call.args[2:], **call.kwargs))
    each = facts_or_range(one), facts_or_range(other)
    is_apart = each[0].upper < each[1].lower or each[1].upper < each[0].lower
    return False if is_apart and call.operator.name == "aten.equal" else None


def is_same(one: Tensor, other: Tensor) -> bool:
    """Two tensors show the same elements of one storage."""
    virtual = virtual_of(one)
    return (
        virtual is not None
        and virtual is virtual_of(other)
        and (
            (one.storage_offset(), one.stride(), one.dtype)
            == (other.storage_offset(), other.stride(), other.dtype)
        )
    )


@special(aten._amp_foreach_non_finite_check_and_unscale_.default)
def unscale_finite(mode: VirtualDispatch, call: Invocation) -> Any:
    """Gradients are assumed to be finite, so `found_inf` stays what it was."""
    _gradients, found_inf, _inv_scale = call.args
    kept = values.real_of(found_inf)
    kept = None if kept is None else kept.clone()
    mode.run(call)
    virtual = virtual_of(found_inf)
    if kept is not None and virtual is not None and virtual.value is None:
        values.give_value(found_inf, kept)


# Choices that unknown scores make are assumed to be balanced.


@special(
    aten.topk.default,
    aten.multinomial.default,
    aten.argmax.default,
    aten.argmin.default,
    aten.max.dim,
    aten.min.dim,
)
def choose_balanced(mode: VirtualDispatch, call: Invocation) -> Any:
    """Unknown indices: every candidate is assumed to be chosen equally often.

    Each expert of a mixture then gets an equal share of the tokens. It is said where a script
    reads what follows from them.
    """
    result = mode.run(call)
    indices = result if isinstance(result, Tensor) else result[1]
    virtual = virtual_of(indices)
    if virtual is None or virtual.value is not None or not indices.numel():
        return result
    scores, dim = call.args[0], chosen_dim(call)
    candidates = scores.numel() if dim is None or not scores.dim() else scores.shape[dim]
    if call.operator.name == ROUTER and dim is not None and (busiest := routing.imbalance()) > 1:
        chosen = routing.chosen_indices(indices.shape, candidates, dim, busiest)
        values.give_value(indices, chosen)
        virtual.assumption = routing.UNEVEN.format(f"{busiest:g}")
        return result
    if may_have_value(indices):
        along = dim if call.operator.name in SEVERAL_CHOICES else None
        values.give_value(indices, routing.balanced_indices(indices.shape, candidates, along))
    keep_facts(indices, Facts(0, candidates - 1, is_even=True), routing.BALANCED)
    return result


@special(aten.histc.default)
def histc(mode: VirtualDispatch, call: Invocation) -> Any:
    """Histogram of integers, too: the host's kernel takes floats only."""
    result = mode.run(call)
    numbers = values.real_of(call.args[0])
    virtual = virtual_of(result)
    if virtual is not None and numbers is not None and not numbers.is_floating_point():
        with values.OneThread():
            counts = call.operator.overload(numbers.double(), *call.args[1:], **call.kwargs)
        values.give_value(result, counts)
        virtual.assumption = assumption_of(call.virtuals)
    return result


SEVERAL_CHOICES = ("aten.topk", "aten.multinomial")
ROUTER = "aten.topk"
"""How mixtures choose experts, and who draws a token usually does not."""


def chosen_dim(call: Invocation) -> int | None:
    """The dimension of the candidates; None for all elements."""
    name = call.operator.name
    if name == "aten.multinomial":
        return -1
    dim: int | None = call.argument("dim")
    return -1 if dim is None and name == "aten.topk" else dim


# What is refused.


@special(
    aten.quantize_per_tensor.default,
    aten.quantize_per_channel.default,
    aten.quantize_per_tensor_dynamic.default,
)
def refuse_quantized(mode: VirtualDispatch, call: Invocation) -> Any:
    """Tensors of quantised dtypes have no meta form."""
    if not call.is_virtual:
        return mode.run(call)
    raise UnsupportedError(
        f"tally does not simulate {call.operator.name} on a GPU: quantised dtypes (torch.qint8) "
        "run on the CPU alone.\nQuantise with torchao, or train with fake quantisation."
    )


# Between devices.


@special(aten.copy_.default)
def copy(mode: VirtualDispatch, call: Invocation) -> Any:
    """Copies; into a real host tensor from a virtual one only a known value can be written."""
    target, source = call.args[0], call.args[1]
    if private.is_meta(target) or virtual_of(source) is None:
        return mode.run(call)
    real = readable(source)
    if real is not None:
        mode.values.note_read(call, assumption_of(call.virtuals))
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
