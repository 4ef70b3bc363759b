"""Operators whose results have a shape that values decide: `x[mask]`, `nonzero`, packed sequences.

If every input has a value, the result is real. Otherwise its shape is a declared assumption, of
which the observer is notified.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import sparse, values
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.facts import assumption_of, facts_of, spread_of
from torchtally.virtual.invocation import META, Invocation, tensors_in
from torchtally.virtual.special import special
from torchtally.virtual.storage import is_sparse, virtual_of
from torchtally.virtual.value_keeper import give_values, has_value

aten = torch.ops.aten


def shaped_by_value(
    mode: VirtualDispatch, call: Invocation, bound: Callable[[], tuple[Any, str | None]]
) -> Any:
    """The real result where values are known, else meta tensors of the declared bound.

    `bound` gives the tensors, and what was assumed for them; None where facts decide.
    """
    if not call.is_virtual:
        return mode.run(call)
    real = mode.values.compute(call) if all(map(has_value, call.inputs)) else None
    if real is None:
        result, assumption = bound()
        if assumption is not None:
            mode.observer.placeholder_given(call.operator.name, assumption)
    else:
        assumption = assumption_of(call.virtuals)
        mode.values.note_read(call, assumption)
        result = private.tree_map_only(Tensor, meta_like, real)
    result = mode.finish(call, result, call.home)
    if real is not None:
        give_values(tensors_in(result), tensors_in(real), assumption)
    return result


def meta_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def count_selected(mode: VirtualDispatch, mask: Tensor, elements: int) -> tuple[int, str | None]:
    """How many of so many elements a mask selects: as facts say, else by the declared fraction."""
    facts, storages = facts_of(mask), [virtual_of(mask)]
    if facts is not None and (facts.lower > 0 or facts.upper < 0):
        return elements, assumption_of(storages)
    if facts is not None and facts.is_constant:
        return 0, assumption_of(storages)
    if facts is not None and facts.share is not None:
        return round(elements * facts.share), spread_of(storages)
    count = round(elements * mode.nonzero_fraction)
    return count, f"{count} of {elements} elements selected"


@special(aten.nonzero.default)
def nonzero(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str | None]:
        mask = call.args[0]
        rows, assumption = count_selected(mode, mask, mask.numel())
        # CUDA's kernel writes one row per dimension and returns the transpose.
        return torch.empty((mask.dim(), rows), dtype=torch.int64, device=META).t(), assumption

    return shaped_by_value(mode, call, bound)


@special(aten._to_sparse.default)
def to_sparse(mode: VirtualDispatch, call: Invocation) -> Any:
    """A COO tensor: a value and its indices for each element that is not zero."""
    dense = call.args[0]
    if not call.is_virtual or is_sparse(dense):
        return mode.run(call)
    real = values.real_of(dense)
    if real is None:
        count, assumption = count_selected(mode, dense, dense.numel())
        if assumption is not None:
            mode.observer.placeholder_given(call.operator.name, assumption)
    else:
        count = int(real.count_nonzero())
    parts = empty(dense.dim(), count), empty(count, dtype=dense.dtype)
    indices, elements = mode.finish(call, parts, call.home)
    return sparse.coo(indices, elements, dense.shape, is_coalesced=True)


@special(aten.masked_select.default)
def masked_select(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str | None]:
        tensor, mask = call.args
        elements = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
        count, assumption = count_selected(mode, mask, elements)
        return empty(count, dtype=tensor.dtype), assumption

    return shaped_by_value(mode, call, bound)


@special(
    aten._unique2.default,
    aten._unique.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.unique_dim_consecutive.default,
)
def unique(mode: VirtualDispatch, call: Invocation) -> Any:
    """Unique elements, at most as many as there are: all different, or as many as integers within
    the bounds.
    """

    def bound() -> tuple[tuple[Tensor, ...], str | None]:
        tensor = call.args[0]
        has_dim = (
            "dim" in call.operator.arguments
            and len(call.args) > 1
            and isinstance(call.args[1], int)
        )
        facts = None if has_dim else facts_of(tensor)
        count = tensor.shape[call.args[1]] if has_dim else tensor.numel()
        assumption: str | None = f"all {count} different"
        if facts is not None and facts.is_permutation:
            assumption = None
        elif facts is not None and not values.is_approximate(tensor.dtype):
            count = min(count, facts.size)
            assumption = f"{count} different ones"
        shape = tuple(tensor.shape) if has_dim else (count,)
        inverse = empty(count) if has_dim else empty(*tensor.shape)
        results = (empty(*shape, dtype=tensor.dtype), inverse, empty(count))
        return results[: len(private.schema(call.operator.overload).returns)], assumption

    return shaped_by_value(mode, call, bound)


@special(aten.repeat_interleave.Tensor)
def repeat_interleave(mode: VirtualDispatch, call: Invocation) -> Any:
    def bound() -> tuple[Tensor, str | None]:
        repeats = call.args[0]
        facts = facts_of(repeats)
        if given := call.kwargs.get("output_size"):
            return empty(given), None
        if facts is not None and (facts.is_constant or facts.total is not None):
            count = facts.total if facts.total is not None else int(facts.lower) * repeats.numel()
            return empty(count), assumption_of(call.virtuals)
        count = repeats.numel()
        return empty(count), f"{count} elements, each repeated once"

    return shaped_by_value(mode, call, bound)


@special(aten.bincount.default)
def bincount(mode: VirtualDispatch, call: Invocation) -> Any:
    """Bins for all integers within the bounds; counts that sum to the elements."""

    def bound() -> tuple[Tensor, str | None]:
        facts = facts_of(call.args[0])
        least = max(1, call.argument("minlength") or 0)
        weights = call.argument("weights")
        dtype = torch.int64 if weights is None else torch.float64
        if facts is not None and facts.upper < least:
            return empty(least, dtype=dtype), assumption_of(call.virtuals)
        bins = least if facts is None else int(facts.upper) + 1
        return empty(bins, dtype=dtype), f"{bins} bins"

    return shaped_by_value(mode, call, bound)


@special(
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)
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
