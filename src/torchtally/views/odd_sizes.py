"""Sizes whose rows tensor cores cannot be fed from, and what the next size would save.

A matrix whose rows do not begin on 16 bytes is multiplied by slower kernels, and a softmax over
such rows reads them three times (`timing/roofline/products.py`, `rows.py`). Each such size is
tried: every call of the period that has it is timed again with the next multiple of 16 bytes in its
place, which is more work at a better rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from torchtally.ledger import Entry, Ledger
from torchtally.ledger.total import Line
from torchtally.timing.constants import ALIGNMENT_BYTES
from torchtally.timing.roofline import Roofline
from torchtally.timing.roofline.products import product_dtype
from torchtally.timing.roofline.rates import uses_matrix_unit
from torchtally.trace import Call, Literal, TensorSpec
from torchtally.work import Kind, cost_of

LEAST_SHARE = 0.01
"""Of a step: what a size must save to be named."""


@dataclass(frozen=True, slots=True)
class OddSize:
    """A dimension of the script's, and the next one that begins its rows on 16 bytes."""

    size: int
    next_size: int
    saved_s: float
    """Of the reported period's kernels."""
    line: Line | None
    """Where most of that is lost."""


def odd_sizes(ledger: Ledger) -> tuple[OddSize, ...]:
    """Those that are worth it, the most first; () for a ledger without times."""
    roofline = ledger.roofline
    if roofline is None or roofline.is_host:
        return ()
    sizes = [try_size(size, step, ledger, roofline) for size, step in candidates(ledger).items()]
    least_s = LEAST_SHARE * ledger.total.seconds
    worth = [odd for odd in sizes if odd.saved_s > least_s]
    return tuple(sorted(worth, key=lambda odd: -odd.saved_s))


def candidates(ledger: Ledger) -> dict[int, int]:
    """Lengths of rows off 16 bytes in products on tensor cores: size -> the multiple it needs."""
    assert ledger.roofline is not None
    chip, sizes = ledger.roofline.chip, dict[int, int]()
    products = {id(entry.call): entry.call for entry in ledger.reported if is_product(entry)}
    for call in products.values():
        dtype, itemsize_bytes = product_dtype(call, call.inputs[-1])
        if not uses_matrix_unit(dtype, chip):
            continue
        multiple = ALIGNMENT_BYTES // itemsize_bytes
        for spec in (*call.inputs, *call.outputs):
            for step in row_steps(spec):
                if step % multiple and step in spec.shape:
                    sizes[step] = max(multiple, sizes.get(step, 1))
    return sizes


def is_product(entry: Entry) -> bool:
    return entry.kind is Kind.PRODUCT and entry.share == 1.0 and entry.cost.flops > 0


def row_steps(spec: TensorSpec) -> Sequence[int]:
    """Steps from one row of a matrix to the next, in elements; a vector has one row only."""
    if min(spec.shape[-2:], default=1) < 2 or len(spec.shape) < 2:
        return ()
    return [step for step in spec.stride[-2:] if step > 1]


def try_size(size: int, multiple: int, ledger: Ledger, roofline: Roofline) -> OddSize:
    """All calls that have this size, with the next in its place."""
    next_size = multiple * -(-size // multiple)
    saved_s_by_call: dict[int, float] = {}
    by_line: dict[Line | None, float] = {}
    for entry in ledger.reported:
        call = entry.call
        if entry.kind.is_free or entry.kind is Kind.UNCOUNTED:
            continue  # no rule, or one that fails on this call
        if id(call) not in saved_s_by_call:
            saved_s_by_call[id(call)] = saved_s(call, size, next_size, roofline)
        entry_s = entry.share * saved_s_by_call[id(call)]
        by_line[entry.line] = by_line.get(entry.line, 0.0) + entry_s
    line = max(by_line, key=lambda line: by_line[line])
    return OddSize(size, next_size, sum(by_line.values()), line)


def saved_s(call: Call, size: int, next_size: int, roofline: Roofline) -> float:
    """Seconds saved by one call; negative where it takes longer."""
    if not any(size in spec.shape for spec in (*call.inputs, *call.outputs)):
        return 0.0
    resized = with_size(call, size, next_size)
    before, after = (roofline.kernel(one, *cost_of(one)).seconds for one in (call, resized))
    return before - after


def with_size(call: Call, size: int, next_size: int) -> Call:
    """The same call where a dimension of `size` is one of `next_size`."""

    def resize(spec: TensorSpec) -> TensorSpec:
        shape = tuple(next_size if length == size else length for length in spec.shape)
        return replace(spec, shape=shape, stride=resized_strides(spec, shape))

    return replace(
        call,
        inputs=tuple(map(resize, call.inputs)),
        outputs=tuple(map(resize, call.outputs)),
        literals=tuple(
            (name, resized_literal(value, size, next_size)) for name, value in call.literals
        ),
    )


def resized_strides(spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
    """Each dimension's elements lie as many of the smaller dimensions apart as before."""
    strides = list(spec.stride)
    order = sorted(range(len(shape)), key=lambda place: (spec.stride[place], -spec.shape[place]))
    for inner, outer in pairwise(order):
        before, within = spec.stride[outer], spec.stride[inner] * spec.shape[inner]
        if within and before % within == 0:
            strides[outer] = before // within * strides[inner] * shape[inner]
    return tuple(strides)


def resized_literal(value: Literal, size: int, next_size: int) -> Literal:
    """Shapes among the arguments (`normalized_shape`)."""
    if not isinstance(value, tuple):
        return value
    return tuple(next_size if item == size else item for item in value)
