"""From a trace to its ledger."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import fsum
from operator import attrgetter

from torchtally.ledger.groups import is_copy, is_view
from torchtally.ledger.ledger import Ledger
from torchtally.ledger.pricing import Priced, price, time_of
from torchtally.ledger.total import Coverage, Entry, Total, Uncounted, Untimed
from torchtally.memory import Category, Memory, replay
from torchtally.timing.roofline import Bound, Roofline
from torchtally.timing.schedule import Clock, Slot
from torchtally.trace import Phase, Trace
from torchtally.trace.columns import collection_paused, records
from torchtally.trace.storage import allocated_bytes
from torchtally.work import Cost, Kind
from torchtally.work.convention import Attention


def account(
    trace: Trace, *, convention: Attention = Attention.FULL, roofline: Roofline | None = None
) -> Ledger:
    """The ledger of a trace: exact FLOPs and bytes by the rules in `cost/`, time by a roofline.

    `convention` says whether causal attention counts in full. An operator without a rule, or whose
    rule cannot make sense of the call, is uncounted and listed in `coverage`; one whose time the
    roofline cannot tell is listed in `untimed`.
    """
    with collection_paused():
        memory = replay(trace)
        prices = price(trace.ops, convention, roofline)
        op_prices = [prices[id(op.call)] for op in trace.ops]
        allocated, saved = _allocations(trace, memory)
        slots = _slots(trace, op_prices, roofline)
        entries = tuple(
            records(
                Entry,
                trace.ops,
                [priced.kind for priced in op_prices],
                [priced.cost for priced in op_prices],
                [allocated.get(op.clock, 0) for op in trace.ops],
                [saved.get(op.clock, 0) for op in trace.ops],
                slots,
            )
        )
        first, end = _steady_places(trace)
        steady = entries[first:end]
        begun_s = fsum(slot.seconds for slot in slots[:first])
        ended_s = fsum(slot.seconds for slot in slots[:end])
        return Ledger(
            trace=trace,
            attention=convention,
            entries=entries,
            steady=steady,
            total=_total(steady, ended_s - begun_s),
            coverage=_coverage(steady, prices),
            memory=memory,
            roofline=roofline,
            untimed=_untimed(steady, prices),
            prices=prices,
        )


def retimed(ledger: Ledger, roofline: Roofline) -> Ledger:
    """The same ledger with the times of another chip: nothing else depends on it."""
    calls = {id(entry.op.call): entry.op.call for entry in ledger.entries}
    prices = {}
    for key, priced in ledger.prices.items():
        time, failure = time_of(calls[key], priced.kind, priced.exact, roofline)
        prices[key] = priced._replace(time=time, time_failure=priced.failure or failure)
    with collection_paused():
        slots = _slots(ledger.trace, [prices[id(op.call)] for op in ledger.trace.ops], roofline)
        entries = tuple(
            records(
                Entry,
                *(
                    list(map(attrgetter(field.name), ledger.entries))
                    for field in fields(Entry)[:-1]
                ),
                slots,
            )
        )
    first, end = _steady_places(ledger.trace)
    steady = entries[first:end]
    begun_s = fsum(slot.seconds for slot in slots[:first])
    ended_s = fsum(slot.seconds for slot in slots[:end])
    return replace(
        ledger,
        entries=entries,
        steady=steady,
        total=replace(
            ledger.total,
            seconds=ended_s - begun_s,
            kernel_s=fsum(entry.slot.kernel_s for entry in steady),
        ),
        roofline=roofline,
        untimed=_untimed(steady, prices),
        prices=prices,
    )


NO_SLOT = Slot(0.0, 0.0, Bound.OVERHEAD, False)


def _slots(trace: Trace, prices: Sequence[Priced], roofline: Roofline | None) -> list[Slot]:
    """When each operator runs."""
    if roofline is None:
        return [NO_SLOT] * len(prices)
    times = [priced.time for priced in prices]
    return Clock(roofline).run(trace.ops, times, trace.waits, trace.step_ends)


def _untimed(entries: Sequence[Entry], prices: Mapping[int, Priced]) -> tuple[Untimed, ...]:
    """Those without a rule have no time either, and are listed as uncounted already."""
    missing = Counter(
        (entry.op.call.name, reason)
        for entry in entries
        if (reason := prices[id(entry.op.call)].time_failure) and entry.kind is not Kind.UNCOUNTED
    )
    return tuple(Untimed(op, count, reason) for (op, reason), count in missing.most_common())


def _allocations(trace: Trace, memory: Memory) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes born at each tick; and those of them saved from forward to backward."""
    phase, activation = Phase.FORWARD, Category.ACTIVATIONS
    forward = {op.clock for op in trace.ops if op.phase is phase}
    allocated: dict[int, int] = {}
    saved: dict[int, int] = {}
    for storage, category in zip(memory.storages, memory.categories, strict=True):
        born = storage.born
        size = allocated_bytes(storage.requested_bytes) + storage.spare_bytes
        allocated[born] = allocated.get(born, 0) + size
        if category is activation and born in forward:
            saved[born] = saved.get(born, 0) + size
    return allocated, saved


def _steady_places(trace: Trace) -> tuple[int, int]:
    """Places [first, end) of the steady-state step's operators."""
    clock = attrgetter("clock")
    first, end = trace.steady_step
    return bisect_left(trace.ops, first, key=clock), bisect_left(trace.ops, end, key=clock)


def _total(entries: Sequence[Entry], seconds: float) -> Total:
    """The total by another road than `sums`: cost times count for each distinct call and phase.

    Its time is what has passed between the step's beginning and its end.
    """
    times = Counter((id(entry.op.call), entry.op.phase) for entry in entries)
    prices = {id(entry.op.call): (entry.kind, entry.cost) for entry in entries}
    total = Total(
        count=len(entries),
        bytes_allocated=sum(entry.bytes_allocated for entry in entries),
        bytes_saved=sum(entry.bytes_saved for entry in entries),
    )
    for (key, phase), count in times.items():
        kind, cost = prices[key]
        total += _of(cost * count, kind, phase)
    return replace(
        total,
        views=sum(1 for entry in entries if is_view(entry)),
        copies=sum(1 for entry in entries if is_copy(entry)),
        seconds=seconds,
        kernel_s=fsum(entry.slot.kernel_s for entry in entries),
    )


def _of(cost: Cost, kind: Kind, phase: Phase) -> Total:
    """A cost alone as a total: no operator, nothing allocated."""
    return Total(
        flops_forward=cost.flops if phase is Phase.FORWARD else 0,
        flops_backward=cost.flops if phase is Phase.BACKWARD else 0,
        flops_recompute=cost.flops if phase is Phase.RECOMPUTE else 0,
        flops_optimizer=cost.flops if phase is Phase.OPTIMIZER else 0,
        flops_matmul=cost.flops if kind.is_matmul else 0,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        network_bytes=cost.network_bytes,
    )


def _coverage(entries: Iterable[Entry], prices: dict[int, Priced]) -> Coverage:
    kinds = Counter(entry.kind for entry in entries)
    missing: Counter[tuple[str, str]] = Counter(
        (entry.op.call.name, prices[id(entry.op.call)].failure or "no rule")
        for entry in entries
        if entry.kind is Kind.UNCOUNTED
    )
    free = sum(count for kind, count in kinds.items() if kind.is_free)
    return Coverage(
        counted=kinds.total() - free - missing.total(),
        free=free,
        uncounted=tuple(
            Uncounted(op, count, reason) for (op, reason), count in missing.most_common()
        ),
    )
