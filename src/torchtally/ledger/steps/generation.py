"""Generation of tokens separated in a run that trains nothing: prefill, decode, the KV cache.

A pass (`passes.py`) *decodes* when the ids that it looks up come from what an earlier pass
computed, and it goes on with that: it reads what the pass before left for it (a KV cache, a
recurrent state), or runs over one token more. Every other pass *prefills*: its tokens were given. A
*generation* is a prefill, in one or several passes, with all that decodes behind it.

What a pass left for a later one is its *cache*: storages that depend on an earlier pass, that
were there before the pass began, and that operators inside of modules read. Token ids, masks and
positions are no cache (whole numbers), and neither is what products with weights read (an encoder's
result).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from torchtally.ledger.steps.flow import Flow
from torchtally.ledger.steps.passes import INDEX_DTYPES, ModelPass, passes_of
from torchtally.trace import Op, Phase, Role, Storage, Trace

NO_CACHE_DTYPES = INDEX_DTYPES | {"int16", "bool"}
BROKEN_OFF = frozenset({"exception", "interrupted", "time"})
"""Endings within a pass, most likely."""


@dataclass(frozen=True, slots=True)
class TokenPass:
    """A pass within a generation: the ticks [first, end)."""

    first: int
    inner_end: int
    """The tick behind its last operator inside of the model."""
    end: int
    sequences: int
    tokens: int
    """Of each sequence."""
    is_decode: bool
    is_main: bool
    """Of the model that the tokens are for; False of a smaller one that drafts for it."""
    cache_bytes: int
    """Of the cache that it leaves, as requested: without the allocator's rounding."""


@dataclass(frozen=True, slots=True)
class TokenGeneration:
    """Tokens generated from given ones: the ticks [first, end)."""

    number: int
    """From one."""
    passes: tuple[TokenPass, ...]

    @property
    def first(self) -> int:
        return self.passes[0].first

    @property
    def end(self) -> int:
        return self.passes[-1].end

    @property
    def prefills(self) -> tuple[TokenPass, ...]:
        """Prefills of the main model."""
        return tuple(each for each in self.passes if each.is_main and not each.is_decode)

    @property
    def decodes(self) -> tuple[TokenPass, ...]:
        """Decodes of the main model."""
        return tuple(each for each in self.passes if each.is_main and each.is_decode)

    @property
    def has_cache(self) -> bool:
        return any(each.cache_bytes for each in self.passes)


def with_generations(flow: Flow) -> tuple[Trace, tuple[TokenGeneration, ...]]:
    """The trace with its phases and its cache separated, and its generations.

    The trace as it is, and none, of a run that trains (`rollouts.py`), or whose passes do not
    decode.
    """
    trace = flow.trace
    if trace.step_ends or trace.measured is not None:
        return trace, ()
    passes = passes_of(flow)
    if any(op.phase is Phase.BACKWARD for op in trace.ops):
        return trace, ()
    generations, cache = generations_among(flow, passes)
    return told_apart(trace, generations, cache), generations


def generations_among(
    flow: Flow, passes: Sequence[ModelPass], first_number: int = 1
) -> tuple[tuple[TokenGeneration, ...], set[int]]:
    """The generations that these passes make up, and the storages of their caches."""
    if len(passes) < 2:
        return (), set()
    reading = PassReading(flow, passes)
    groups = list(_generations(reading))
    if not groups:
        return (), set()
    cache = _cache(reading)
    generations = tuple(
        TokenGeneration(number, tuple(_token_passes(reading, group, cache)))
        for number, group in enumerate(groups, first_number)
    )
    return generations, cache


@dataclass(slots=True)
class PassReading:
    """Which passes decode, and which storages they read of earlier passes; found in one go."""

    flow: Flow
    passes: Sequence[ModelPass]
    decodes: list[bool] = field(default_factory=list)
    cache: set[int] = field(default_factory=set)
    _computed: set[int] = field(default_factory=set)
    """Storages that depend on a pass."""
    _from_host: set[int] = field(default_factory=set)
    """Storages copied from the host after it had waited for a pass, and read what it made."""

    def __post_init__(self) -> None:
        latest: dict[object, ModelPass] = {}
        for each in self.passes:
            self._follow(each.first, each.lookup)
            is_computed = not self._computed.isdisjoint(each.ids)
            is_from_host = not self._from_host.isdisjoint(each.ids)
            read = self._follow_pass(each)
            before = latest.get(each.table)
            grows = before is not None and each.tokens - before.tokens in (0, 1)
            self.decodes.append(
                before is not None
                and ((is_computed and (bool(read) or grows)) or (is_from_host and bool(read)))
            )
            if self.decodes[-1]:
                self.cache |= read
            latest[each.table] = each

    def _follow_pass(self, each: ModelPass) -> set[int]:
        """What it reads of earlier passes; then what depends on it."""
        flow, storages = self.flow, self.flow.trace.storages
        first_tick = flow.ops[each.first].clock
        read: set[int] = set()
        for op in flow.ops[each.lookup : each.inner_end]:
            if flow.is_view[op.call]:
                continue
            if not self._computed.isdisjoint(op.inputs):
                read.update(
                    number
                    for number in self._kept_inputs(op)
                    # A CUDA graph's own storages have died in its capture.
                    if storages[number].born < first_tick <= end_tick(storages[number])
                )
            self._computed.update(number for number in flow.written_storages(op) if number >= 0)
        self._follow(each.inner_end, each.end)
        return read

    def _kept_inputs(self, op: Op) -> Iterator[int]:
        """Inputs that depend on a pass and may be a cache: all but ids, masks, counters, and what
        is multiplied with weights.
        """
        trace, numbers = self.flow.trace, op.inputs
        is_weighted = any(
            number >= 0 and trace.storages[number].role is Role.PARAMETER for number in numbers
        )
        for spec, number in zip(trace.calls[op.call].inputs, numbers, strict=True):
            if number not in self._computed or spec.dtype in NO_CACHE_DTYPES or spec.elements < 2:
                continue
            if spec.is_written or not is_weighted:
                yield number

    def _has_waited(self, tick: int) -> bool:
        """The host for the device, after the first pass."""
        waits = self.flow.trace.waits
        first = self.flow.ops[self.passes[0].inner_end - 1].clock
        return bisect_right(waits, tick) > bisect_right(waits, first)

    def choice_end(self, each: ModelPass) -> int:
        """One past the last operator behind a pass that reads what a pass computed."""
        ops = self.flow.ops
        behind = (
            place
            for place in range(each.end - 1, each.inner_end - 1, -1)
            if not self._computed.isdisjoint(ops[place].inputs)
        )
        return next(behind, each.inner_end - 1) + 1

    def _follow(self, first: int, end: int) -> None:
        """What operators outside of passes make of what passes computed."""
        flow, computed = self.flow, self._computed
        for op in flow.ops[first:end]:
            if flow.is_view[op.call]:
                continue
            written = [number for number in flow.written_storages(op) if number >= 0]
            if not computed.isdisjoint(op.inputs):
                computed.update(written)
            elif max(op.inputs, default=-1) < 0:
                if self._has_waited(op.clock):
                    self._from_host.update(written)
            elif not self._from_host.isdisjoint(op.inputs):
                self._from_host.update(written)


def _generations(reading: PassReading) -> Iterator[list[tuple[ModelPass, bool]]]:
    """Each with its passes, and whether they decode; without those in which nothing decodes.

    A prefill behind decoding begins another generation, unless a model goes on decoding for which
    there was no prefill since: it drafts for the one that is prefilled now.
    """
    groups: list[list[tuple[ModelPass, bool]]] = []
    prefilled: set[object] = set()
    for each, is_decode in zip(reading.passes, reading.decodes, strict=True):
        if is_decode and each.table not in prefilled and len(groups) > 1:
            groups[-2:] = [groups[-2] + groups[-1]]
            prefilled = {other.table for other, _ in groups[-1]}
        if not groups or (not is_decode and any(decodes for _, decodes in groups[-1])):
            groups.append([])
            prefilled = set()
        groups[-1].append((each, is_decode))
        if not is_decode:
            prefilled.add(each.table)
    if groups and _is_broken_off(reading.flow.trace, groups[-1]):
        groups[-1].pop()
    yield from (group for group in groups if any(is_decode for _, is_decode in group))


def _is_broken_off(trace: Trace, group: Sequence[tuple[ModelPass, bool]]) -> bool:
    """The run ended within the last pass: it has fewer operators than the one before."""
    if trace.ending.kind not in BROKEN_OFF or len(group) < 2:
        return False
    before, last = (each.inner_end - each.first for each, _ in group[-2:])
    return last < before


def _cache(reading: PassReading) -> set[int]:
    """What was read as a cache, what it was copied from between two passes (beams in another
    order), and what was written last in its place, which no pass reads any more.
    """
    flow, calls, cache = reading.flow, reading.flow.trace.calls, set(reading.cache)
    for each in reading.passes:
        for op in flow.ops[each.inner_end : each.end]:
            if not cache.isdisjoint(op.outputs):
                cache.update(reading._kept_inputs(op))
    makers = {
        (op.site, calls[op.call].name)
        for op in flow.ops
        if not flow.is_view[op.call] and not cache.isdisjoint(flow.written_storages(op))
    }
    for each in reading.passes:
        end = flow.ops[each.inner_end - 1].clock + 1
        for op in flow.ops[each.first : each.end]:
            if (op.site, calls[op.call].name) in makers:
                cache.update(
                    number for number in flow.written_storages(op) if _is_left(flow, number, end)
                )
    return cache


def end_tick(storage: Storage) -> float:
    """The tick of its death."""
    return math.inf if storage.died is None else storage.died


def _is_left(flow: Flow, number: int, end: int) -> bool:
    """Whether it lies behind its pass."""
    if number < 0:
        return False
    storage = flow.trace.storages[number]
    return end_tick(storage) >= end and storage.role in (None, Role.BUFFER)


def _token_passes(
    reading: PassReading, group: Sequence[tuple[ModelPass, bool]], cache: Iterable[int]
) -> Iterator[TokenPass]:
    trace = reading.flow.trace
    # Of two models with equal tables the one that drafts runs first.
    tables = {each.table: each.table_bytes for each, _ in group}
    main = max(reversed(tables), key=tables.__getitem__)
    held = [trace.storages[number] for number in cache]
    for each, is_decode in group:
        end = each.end if each is not group[-1][0] else reading.choice_end(each)
        inner_end = trace.ops[each.inner_end - 1].clock + 1
        yield TokenPass(
            first=trace.ops[each.first].clock,
            inner_end=inner_end,
            end=trace.ops[end - 1].clock + 1,
            sequences=each.sequences,
            tokens=each.tokens,
            is_decode=is_decode,
            is_main=each.table == main,
            cache_bytes=sum(
                storage.requested_bytes
                for storage in held
                if storage.born < inner_end <= end_tick(storage)
            ),
        )


def told_apart(trace: Trace, generations: Sequence[TokenGeneration], cache: set[int]) -> Trace:
    """Trace with the phases of generations, and the role of the cache."""
    if not generations:
        return trace
    passes = chain.from_iterable(generation.passes for generation in generations)
    ops = list(trace.ops)
    places = {op.clock: place for place, op in enumerate(ops)}
    for each in passes:
        phase = Phase.DECODE if each.is_decode else Phase.PREFILL
        for place in range(places[each.first], places[each.end - 1] + 1):
            ops[place] = replace(ops[place], phase=phase)
    storages = tuple(
        replace(storage, role=Role.KV_CACHE) if storage.number in cache else storage
        for storage in trace.storages
    )
    return replace(trace, ops=tuple(ops), storages=storages)
