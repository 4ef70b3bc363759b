"""What must hold between the tables of a trace from a file that is not trusted.

msgspec has checked types and bounds already; each check here raises InvalidTraceError.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from torchtally.trace.op import Call, Op, TensorSpec
from torchtally.trace.storage import Storage

ELEMENT_LIMIT = (1 << 63) - 1
"""torch counts a tensor's elements in an int64."""


class InvalidTraceError(Exception):
    """The tables of a trace contradict each other. The message says which."""


def check_calls(calls: Iterable[Call]) -> None:
    for call in calls:
        for spec in (*call.inputs, *call.outputs):
            _check_spec(spec)
        for part in call.fused.parts if call.fused is not None else ():
            check_calls(part.calls)


def _check_spec(spec: TensorSpec) -> None:
    if len(spec.shape) != len(spec.stride) or min(spec.shape, default=0) < 0:
        raise InvalidTraceError("the shape and strides of a tensor do not match")
    if math.prod(spec.shape) > ELEMENT_LIMIT:
        raise InvalidTraceError("a tensor has more elements than an int64 can count")


def check_ops(ops: Sequence[Op], calls: Sequence[Call], sites: int, storages: int) -> None:
    """One list per column: a loop over a million operators would take seconds."""
    if any(after <= before for before, after in pairwise([op.clock for op in ops])):
        raise InvalidTraceError("the clock runs backwards")
    numbers = [op.call for op in ops]
    check_numbers(numbers, len(calls), "call")
    check_numbers([op.site for op in ops], sites, "site")
    inputs, outputs = [op.inputs for op in ops], [op.outputs for op in ops]
    _check_arity(inputs, [len(calls[number].inputs) for number in numbers])
    _check_arity(outputs, [len(calls[number].outputs) for number in numbers])
    parts = [op.parts for op in ops]
    if list(map(len, parts)) != list(map(_parts_of, map(calls.__getitem__, numbers))):
        raise InvalidTraceError("the sites of a fused operator do not match its parts")
    check_numbers(list(chain.from_iterable(parts)), sites, "site")
    named = [-1, *chain.from_iterable(inputs), *chain.from_iterable(outputs)]
    if min(named) < -1 or max(named) >= storages:
        raise InvalidTraceError("an operator refers to a storage that does not exist")


def _check_arity(column: list[tuple[int, ...]], arities: list[int]) -> None:
    if list(map(len, column)) != arities:
        raise InvalidTraceError("the storages of an operator do not match its call")


def _parts_of(call: Call) -> int:
    return 0 if call.fused is None else len(call.fused.parts)


def check_storages(storages: Sequence[Storage]) -> None:
    if any(storage.number != number for number, storage in enumerate(storages)):
        raise InvalidTraceError("the storages are not numbered in order")
    for storage in storages:
        if storage.died is not None and storage.died < storage.born:
            raise InvalidTraceError(f"storage {storage.number} dies before it is born")


def check_numbers(numbers: Sequence[int], rows: int, what: str) -> None:
    """Each is the number of one of so many rows."""
    if numbers and not 0 <= min(numbers) <= max(numbers) < rows:
        raise InvalidTraceError(f"a {what} is referred to that does not exist")


def check_steps(ends: Sequence[int]) -> None:
    if any(after < before for before, after in pairwise(ends)):
        raise InvalidTraceError("the ends of the steps are not in order")


def check_ticks(ticks: Sequence[int], what: str) -> None:
    if any(after <= before for before, after in pairwise(ticks)):
        raise InvalidTraceError(f"the ticks {what} are not in order")
