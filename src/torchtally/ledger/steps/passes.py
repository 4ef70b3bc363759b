"""The passes of a language model in a run: each begins where it looks up its token ids.

A *pass* is one run of the model over some tokens of each sequence. It is found by its embedding:
the first lookup behind work outside of modules, or the first that comes again (compiled kernels do
the same lookup again where that is cheaper than keeping it). With it goes all that follows up to
the next pass, as choosing the next token outside of the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtally.ledger.steps.flow import Flow
from torchtally.trace import Op, Role, Trace
from torchtally.trace.lookup import Lookup, lookup_of

INDEX_DTYPES = frozenset({"int64", "int32"})


@dataclass(frozen=True, slots=True)
class ModelPass:
    """One run of a model over tokens: the operators at the places [first, end) of the trace."""

    first: int
    lookup: int
    """The place of its lookup."""
    inner_end: int
    """One past its last operator inside of any module."""
    end: int
    sequences: int
    """In the batch; beams count."""
    tokens: int
    """Of each sequence."""
    table: object
    """What tells one model's passes from another's: its embedding."""
    table_bytes: int
    ids: tuple[int, ...]
    """Storages that the token ids are read from."""


def passes_of(flow: Flow) -> tuple[ModelPass, ...]:
    """All passes of a run, in order."""
    trace, ops = flow.trace, flow.ops
    lookups = [lookup_of(call) for call in trace.calls]
    outside = [not (site.module or site.module_class) for site in trace.sites]
    firsts = list(_firsts(trace, lookups, outside))
    starts = [
        _inner_start(ops, outside, place, before)
        for before, place in zip((-1, *firsts), firsts, strict=False)
    ]
    ends = [*starts[1:], len(ops)][: len(starts)]
    return tuple(
        _pass(trace, lookups[ops[place].call], place, start, end, outside)
        for place, start, end in zip(firsts, starts, ends, strict=True)
    )


def _firsts(
    trace: Trace, lookups: Sequence[Lookup | None], outside: Sequence[bool]
) -> Iterator[int]:
    """The places of the lookups that begin a pass."""
    seen: set[object] = set()
    is_behind_outside = True
    for place, op in enumerate(trace.ops):
        lookup, is_outside = lookups[op.call], outside[op.site]
        if lookup is not None:
            table = _table(trace, op, lookup)
            is_again = table in seen and not lookup.is_fused
            if is_again or not seen or (is_behind_outside and not is_outside):
                seen.clear()
                yield place
            seen.add(table)
        is_behind_outside = is_outside or (is_behind_outside and lookup is None)


def _table(trace: Trace, op: Op, lookup: Lookup) -> object:
    """Its storage. Which one a compiled kernel looks up in is not recorded: a weight of that shape;
    the place in the script where there is none.
    """
    for spec, number in zip(trace.calls[op.call].inputs, op.inputs, strict=True):
        is_weight = number >= 0 and trace.storages[number].role in (Role.PARAMETER, Role.BUFFER)
        if is_weight and spec.shape == lookup.table.shape:
            return number
    return ("site", op.site)


def _inner_start(ops: Sequence[Op], outside: Sequence[bool], place: int, before: int) -> int:
    """Start of the operators inside of modules that lead up to a lookup, from the model's call on.

    Where no work outside of modules lies between it and the lookup before, a model runs in a loop
    of another module: the pass begins at the lookup.
    """
    start = place
    while start - 1 > before and not outside[ops[start - 1].site]:
        start -= 1
    return place if start - 1 == before and before >= 0 else start


def _pass(
    trace: Trace, lookup: Lookup | None, place: int, start: int, end: int, outside: Sequence[bool]
) -> ModelPass:
    assert lookup is not None
    op = trace.ops[place]
    inner = (n for n in range(end - 1, start - 1, -1) if not outside[trace.ops[n].site])
    inputs = zip(trace.calls[op.call].inputs, op.inputs, strict=True)
    return ModelPass(
        first=start,
        lookup=place,
        inner_end=next(inner, end - 1) + 1,
        end=end,
        sequences=lookup.sequences,
        tokens=lookup.tokens,
        table=_table(trace, op, lookup),
        table_bytes=lookup.table.bytes,
        ids=tuple(number for spec, number in inputs if spec.dtype in INDEX_DTYPES),
    )
