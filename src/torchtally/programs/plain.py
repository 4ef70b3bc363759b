"""Recordings without what depends on the process, or costs nothing.

A process hands streams out of one pool, so a run's own numbers depend on the runs before it. A
library that wraps each layer may make a tensor of no elements for it, in none of its modules.
"""

from collections import Counter
from itertools import accumulate

from msgspec.structs import replace

from torchtally.programs.parts import DEFAULT_STREAM
from torchtally.trace import Op, Trace
from torchtally.trace.ranks import COMMUNICATORS, HOST


def streams_in_order(trace: Trace) -> Trace:
    """The trace with its streams numbered from 1 as they appear; the default one, communicators'
    and the host's keep their numbers.
    """
    numbers = {DEFAULT_STREAM: DEFAULT_STREAM, HOST: HOST}

    def number(stream: int) -> int:
        if stream >= COMMUNICATORS:
            return stream
        return numbers.setdefault(stream, len(numbers) - 1)

    return replace(
        trace,
        ops=tuple(replace(op, stream=number(op.stream)) for op in trace.ops),
        storages=tuple(replace(each, stream=number(each.stream)) for each in trace.storages),
        stream_waits=tuple(
            replace(wait, stream=number(wait.stream), other=number(wait.other))
            for wait in trace.stream_waits
        ),
    )


def without_empties(trace: Trace) -> Trace:
    """The trace without operators that make a tensor of no elements, outside modules, which no
    other operator touches.
    """
    uses = Counter(number for op in trace.ops for number in {*op.inputs, *op.outputs})

    def is_empty(op: Op) -> bool:
        return not (op.inputs or trace.sites[op.site].module) and all(
            uses[number] == 1 and number >= 0 and not trace.storages[number].requested_bytes
            for number in op.outputs or (-1,)
        )

    dropped = [is_empty(op) for op in trace.ops]
    if not any(dropped):
        return trace
    ticks = [0, *accumulate(not each for each in dropped)]
    gone = {
        n for op, is_gone in zip(trace.ops, dropped, strict=True) if is_gone for n in op.outputs
    }
    kept = [storage for storage in trace.storages if storage.number not in gone]
    numbers = {storage.number: number for number, storage in enumerate(kept)} | {-1: -1}
    return replace(
        trace,
        ops=tuple(
            replace(
                op,
                clock=ticks[op.clock],
                inputs=tuple(numbers[number] for number in op.inputs),
                outputs=tuple(numbers[number] for number in op.outputs),
            )
            for op, is_gone in zip(trace.ops, dropped, strict=True)
            if not is_gone
        ),
        storages=tuple(
            replace(
                storage,
                number=number,
                born=ticks[storage.born],
                died=None if storage.died is None else ticks[storage.died],
            )
            for number, storage in enumerate(kept)
        ),
        step_ends=tuple(ticks[tick] for tick in trace.step_ends),
        waits=tuple(ticks[tick] for tick in trace.waits),
        differentiated=tuple(ticks[tick] for tick in trace.differentiated),
        stream_waits=tuple(
            replace(wait, tick=ticks[wait.tick], until=ticks[wait.until])
            for wait in trace.stream_waits
        ),
        reserved=tuple(replace(each, tick=ticks[each.tick]) for each in trace.reserved),
    )


def without_recompilations(trace: Trace) -> Trace:
    """The trace without notes that say at which sizes a graph was compiled again."""
    return replace(trace, notes=tuple(n for n in trace.notes if " recompiled: " not in n.text))


def plain(trace: Trace) -> Trace:
    """The trace as it is recorded and compared."""
    return without_recompilations(streams_in_order(without_empties(trace)))
