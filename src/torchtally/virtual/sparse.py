"""Sparse tensors on the virtual GPU: torch's own, with indices and values that are virtual.

What they cost is what their values cost: a product with a dense matrix multiplies each value with a
row. Operators that are not in the table below are refused by name.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.torch_private import OpOverload
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import META, Invocation
from torchtally.virtual.storage import is_sparse

aten = torch.ops.aten

Handler = Callable[[VirtualDispatch, Invocation], Any]
HANDLERS: dict[OpOverload, Handler] = {}

COLUMNS = (torch.sparse_csc, torch.sparse_bsc)
"""Layouts that compress columns."""


def handles(*overloads: OpOverload) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(overloads, handler))
        return handler

    return register


def run(mode: VirtualDispatch, call: Invocation) -> Any:
    """A call with a sparse tensor among its arguments."""
    overload = call.operator.overload
    handler = HANDLERS.get(overload)
    if handler is not None:
        return handler(mode, call)
    others = [tensor for tensor in call.inputs if not is_sparse(tensor) and tensor.dim()]
    if torch.Tag.pointwise in overload.tags and len(call.inputs) - len(others) == 1 and not others:
        return on_values(mode, call)
    raise UnsupportedError(
        f"tally does not simulate {overload} on sparse tensors of layout {layouts(call)}.\n"
        "Products with dense matrices, sums, elementwise operators and to_dense() are: use those, "
        "or run this part on the CPU."
    )


def layouts(call: Invocation) -> str:
    return ", ".join(str(tensor.layout) for tensor in call.inputs if is_sparse(tensor))


# Parts.


def indices_of(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return (private.sparse_indices(tensor),)
    if tensor.layout in COLUMNS:
        return tensor.ccol_indices(), tensor.row_indices()
    return tensor.crow_indices(), tensor.col_indices()


def rebuilt(like: Tensor, indices: tuple[Tensor, ...], values: Tensor) -> Tensor:
    """A tensor of the same shape and layout of other parts, which keep their storages."""
    if like.layout is torch.sparse_coo:
        return coo(indices[0], values, like.shape, is_coalesced=like.is_coalesced())
    compressed: Any = torch.sparse_compressed_tensor
    tensor: Tensor = compressed(
        *indices, values, like.shape, layout=like.layout, check_invariants=False
    )
    return tensor


def coo(indices: Tensor, values: Tensor, shape: torch.Size, *, is_coalesced: bool) -> Tensor:
    return torch.sparse_coo_tensor(
        indices, values, shape, is_coalesced=is_coalesced, check_invariants=False
    )


# Operators that torch runs on the parts alone.


@handles(
    aten.detach.default, aten.alias.default,
    aten._values.default, aten.values.default, aten._indices.default, aten.indices.default,
    aten.crow_indices.default, aten.col_indices.default, aten.ccol_indices.default,
    aten.row_indices.default, aten._nnz.default, aten.is_coalesced.default,
    aten._coalesced_.default, aten.sparse_dim.default, aten.dense_dim.default,
    aten._dimI.default, aten._dimV.default,
)  # fmt: skip
def describe_parts(mode: VirtualDispatch, call: Invocation) -> Any:
    return call.operator.overload(*call.args, **call.kwargs)


@handles(aten.t.default, aten.transpose.int)
def transpose(mode: VirtualDispatch, call: Invocation) -> Tensor:
    """COO: the rows of the indices in another order. A compressed layout becomes its counterpart.

    torch's own of a COO tensor on meta loses the values.
    """
    sparse: Tensor = call.args[0]
    if sparse.layout is not torch.sparse_coo:
        return describe_parts(mode, call)  # type: ignore[no-any-return]
    order = list(range(sparse.dim()))
    first, second = (call.args[1:3] if len(call.args) > 1 else (0, -1)) if order else (0, 0)
    order[first], order[second] = order[second], order[first]
    (indices,) = indices_of(sparse)
    with mode:
        indices = torch.stack([indices[place] for place in order[: sparse.sparse_dim()]])
    shape = torch.Size(sparse.shape[place] for place in order)
    return coo(indices, private.sparse_values(sparse), shape, is_coalesced=False)


def on_values(mode: VirtualDispatch, call: Invocation) -> Any:
    """An elementwise operator of one sparse tensor and numbers."""

    def value(arg: Any) -> Any:
        is_sparse_here = isinstance(arg, Tensor) and is_sparse(arg)
        return private.sparse_values(arg) if is_sparse_here else arg

    arguments = [value(arg) for arg in call.args]
    sparse = next(tensor for tensor in call.inputs if is_sparse(tensor))
    with mode:
        values = call.operator.overload(*arguments, **call.kwargs)
    return sparse if call.operator.is_inplace else rebuilt(sparse, indices_of(sparse), values)


HANDLERS |= dict.fromkeys((aten.clone.default, aten.zeros_like.default), on_values)


@handles(aten._to_copy.default)
def copy_parts(mode: VirtualDispatch, call: Invocation) -> Tensor:
    """Copies the parts to another device or dtype."""
    sparse: Tensor = call.args[0]
    options = dict(call.kwargs)
    options.pop("layout", None)
    kinds = {name: value for name, value in options.items() if name != "dtype"}
    with mode:
        indices = tuple(private.to_copy(part, **kinds) for part in indices_of(sparse))
        values = private.to_copy(private.sparse_values(sparse), **options)
    return rebuilt(sparse, indices, values)


# Products.


def multiply(
    mode: VirtualDispatch, sparse: Tensor, dense: Tensor, shape: tuple[int, ...], added: Any = None
) -> Tensor:
    """Each value times a row of the dense operand; recorded with values and indices."""
    overload = aten._sparse_mm.default if added is None else aten._sparse_addmm.default
    values = private.sparse_values(sparse)
    arguments = (values, dense) if added is None else (added, values, dense)
    parts = {f"indices{n}": part for n, part in enumerate(indices_of(sparse))}
    product = Invocation(mode.operator(overload), arguments, parts)
    result = torch.empty(shape, dtype=dense.dtype, device=META)
    finished: Tensor = mode.finish(product, result, product.home)
    return finished


@handles(aten.mm.default, aten._sparse_mm.default, aten.mv.default)
def product(mode: VirtualDispatch, call: Invocation) -> Tensor:
    left, right = call.args
    if is_sparse(left) and is_sparse(right):
        refuse_unknown_count(call)
    shape = (*left.shape[:-1], *right.shape[1:])
    return multiply(mode, *((left, right) if is_sparse(left) else (right, left)), shape)


@handles(aten.addmm.default, aten._sparse_addmm.default)
def product_with_sum(mode: VirtualDispatch, call: Invocation) -> Tensor:
    added, left, right = call.args[:3]
    if is_sparse(added) or (is_sparse(left) and is_sparse(right)):
        refuse_unknown_count(call)
    shape = (left.shape[0], right.shape[1])
    operands = (left, right) if is_sparse(left) else (right, left)
    return multiply(mode, *operands, shape, added)


def refuse_unknown_count(call: Invocation) -> NoReturn:
    raise UnsupportedError(
        f"tally does not simulate {call.operator.overload} with a sparse result: how many values "
        "it has depends on values that a simulated run does not know.\n"
        "Run this part on the CPU, or with one operand dense."
    )


# Sums, and other forms.


@handles(aten.add.Tensor, aten.sub.Tensor)
def add(mode: VirtualDispatch, call: Invocation) -> Tensor:
    """Sum of two sparse tensors: the values of both, not yet coalesced."""
    left, right = call.args[:2]
    if left.layout is torch.sparse_coo and right.layout is torch.sparse_coo:
        with mode:
            indices = torch.cat([*indices_of(left), *indices_of(right)], dim=1)
            values = torch.cat([private.sparse_values(left), private.sparse_values(right)])
        return coo(indices, values, left.shape, is_coalesced=False)
    dense, sparse = (right, left) if is_sparse(left) else (left, right)
    result = torch.empty_strided(dense.shape, dense.stride(), dtype=dense.dtype, device=META)
    return result_of(mode, call, dense, sparse, result)


@handles(aten.add_.Tensor, aten.sub_.Tensor)
def add_in_place(mode: VirtualDispatch, call: Invocation) -> Any:
    """Adds into a dense tensor, as SGD adds a sparse gradient; or gradients that meet."""
    target, source = call.args[:2]
    return add(mode, call) if is_sparse(target) else result_of(mode, call, target, source, target)


def result_of(
    mode: VirtualDispatch, call: Invocation, dense: Tensor, sparse: Tensor, result: Tensor
) -> Tensor:
    """Record the operator with the values in the place of the sparse tensor, and their indices."""
    parts = {f"indices{n}": part for n, part in enumerate(indices_of(sparse))}
    recorded = Invocation(call.operator, (dense, private.sparse_values(sparse)), parts)
    finished: Tensor = mode.finish(recorded, result, recorded.home)
    return finished


@handles(aten.sparse_mask.default)
def mask(mode: VirtualDispatch, call: Invocation) -> Tensor:
    """The elements of a dense tensor at the places that a sparse one has values for."""
    dense, places = call.args[:2]
    if is_sparse(dense) or places.layout is not torch.sparse_coo:
        refuse_unknown_count(call)
    (indices,) = indices_of(places)
    with mode:
        values = dense[tuple(indices.unbind(0))]
    return coo(indices, values, places.shape, is_coalesced=places.is_coalesced())


@handles(aten._to_dense.default)
def to_dense(mode: VirtualDispatch, call: Invocation) -> Tensor:
    sparse = call.args[0]
    dtype = call.args[1] if len(call.args) > 1 else call.kwargs.get("dtype")
    recorded = Invocation(call.operator, (private.sparse_values(sparse),), {})
    result = torch.empty(sparse.shape, dtype=dtype or sparse.dtype, device=META)
    finished: Tensor = mode.finish(recorded, result, recorded.home)
    return finished


@handles(aten._coalesce.default)
def coalesce(mode: VirtualDispatch, call: Invocation) -> Tensor:
    """Sorted, and sums of values with the same indices: taken to be all different."""
    sparse: Tensor = call.args[0]
    values = private.sparse_values(sparse)
    with mode:
        indices = indices_of(sparse)[0].clone()
    recorded = Invocation(call.operator, (values,), {})
    sums = torch.empty(values.shape, dtype=values.dtype, device=META)
    result = mode.finish(recorded, sums, recorded.home)
    mode.observer.placeholder_given(call.operator.name, f"all {values.shape[0]} indices different")
    return coo(indices, result, sparse.shape, is_coalesced=True)
