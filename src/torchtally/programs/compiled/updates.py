"""Optimizers' steps in one kernel: each number is read once and written once.

An optimizer of operators over lists of tensors reads and writes its state, gradients and
parameters at each of them. Fused, as Apex's and PyTorch's kernels are or as a compiler makes it,
what one operator hands to the next stays on the chip.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from torchtally.trace import Call, FusedKernel, Op, Part, Phase, TensorSpec, Trace
from torchtally.work import Kind, cost_of

PLAIN_NAME = re.compile(r"^.*\.(_foreach_)?")
LONGEST_NAME = 100
LOOPS = frozenset({Kind.ELEMENTWISE, Kind.COPY, Kind.VIEW, Kind.METADATA})


class Update(NamedTuple):
    """A step of an optimizer as one kernel."""

    call: Call
    inputs: tuple[int, ...]
    """Recorded storages."""
    outputs: tuple[int, ...]


def update_ranges(trace: Trace) -> list[range]:
    """Positions of operators without a gap that update parameters, element by element."""
    ranges: list[range] = []
    is_loop = [cost_of(call)[0] in LOOPS and is_on_device(call) for call in trace.calls]
    ends = set(trace.step_ends)
    for position, op in enumerate(trace.ops):
        if op.phase is not Phase.OPTIMIZER or not is_loop[op.call]:
            continue
        if ranges and ranges[-1].stop == position and op.clock not in ends:
            ranges[-1] = range(ranges[-1].start, position + 1)
        else:
            ranges.append(range(position, position + 1))
    return ranges


def is_on_device(call: Call) -> bool:
    return all(spec.is_on_device for spec in (*call.inputs, *call.outputs))


def update_of(trace: Trace, ops: Sequence[Op], last_uses: dict[int, int]) -> Update:
    """The operators as one kernel. `last_uses` are the last positions of each storage's readers."""
    start, stop = ops[0].clock, ops[-1].clock + 1
    reads: dict[int, tuple[TensorSpec, Op]] = {}
    writes: dict[int, tuple[TensorSpec, Op]] = {}
    for op in ops:
        call = trace.calls[op.call]
        if call.is_view:
            continue
        for spec, number in zip(call.inputs, op.inputs, strict=True):
            if number not in writes and trace.storages[number].born < start:
                reads.setdefault(number, (spec, op))
        written = [(s, n) for s, n in zip(call.inputs, op.inputs, strict=True) if s.is_written]
        for spec, number in (*written, *zip(call.outputs, op.outputs, strict=True)):
            writes[number] = spec, op
    held = {
        number: pair
        for number, pair in writes.items()
        if trace.storages[number].born < start
        or last_uses[number] >= stop
        or (died := trace.storages[number].died) is None
        or died > stop
    }
    born = [number for number in held if trace.storages[number].born >= start]
    there = [*reads, *(n for n in held if n not in reads and n not in born)]
    specs = {**{n: spec for n, (spec, _) in held.items()}, **{n: s for n, (s, _) in reads.items()}}
    parts = tuple(part_of(trace, op, reads, held) for op in ops if not trace.calls[op.call].is_view)
    names = dict.fromkeys(PLAIN_NAME.sub("", part.operator).strip("_") for part in parts)
    call = Call(
        f"derived.foreach_{'_'.join(names)}"[:LONGEST_NAME],
        "",
        tuple(
            replace(specs[n], argument=f"in_ptr{place}", storage=place, is_written=n in held)
            for place, n in enumerate(there)
        ),
        tuple(
            replace(specs[n], argument="", storage=len(there) + place, is_written=False)
            for place, n in enumerate(born)
        ),
        is_mutating=True,
        fused=FusedKernel("foreach", parts),
    )
    return Update(call, tuple(there), tuple(born))


def part_of(
    trace: Trace,
    op: Op,
    reads: dict[int, tuple[TensorSpec, Op]],
    writes: dict[int, tuple[TensorSpec, Op]],
) -> Part:
    call = trace.calls[op.call]
    return Part(call.name, (call,), bytes_of(reads.values(), op), bytes_of(writes.values(), op))


def bytes_of(pairs: Iterable[tuple[TensorSpec, Op]], op: Op) -> int:
    """Bytes that an operator is the first to read, or the last to write."""
    return sum(spec.bytes for spec, owner in pairs if owner is op)
