"""The times of a trace that a profiler measured, in the form of predicted ones.

Every moment from the first kernel to the last belongs to one operator, by the rules of
`timing/streams.py`: to the one whose kernel computes, else to a collective that runs, else to the
one that the device idles for. So measured and predicted ledgers have the same laws and views.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torchtally.errors import UsageError
from torchtally.ledger.pricing import CallCost
from torchtally.ledger.times import NO_SPAN, Times
from torchtally.timing.ranks import Span
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.slots import NOTHING, Slot
from torchtally.timing.streams import Charge, charges
from torchtally.trace import Measured, Trace
from torchtally.work import Kind

NS = 1e-9


def measured_times(
    trace: Trace,
    measured: Measured,
    costs: Sequence[CallCost],
    roofline: Roofline | None,
    late_s: Mapping[int, float] = MappingProxyType({}),
) -> Times:
    """Times as measured. The roofline says what binds each operator and what it would take there;
    without one, and for operators that it cannot time, nothing does. `late_s` is what collectives
    wait for other ranks, by the operator's place.
    """
    own = None if roofline is None else roofline.within(trace.world, trace.groups)
    modelled = [
        None if own is None else predicted_kernel(trace, number, cost, own)
        for number, cost in enumerate(costs)
    ]
    charged = charges_of(trace, measured, costs, late_s)
    kernel_s = [0.0] * len(trace.ops)
    spans = [NO_SPAN] * len(trace.ops)
    for kernel in measured.kernels:
        place = kernel.op
        kernel_s[place] += kernel.duration_ns * NS
        start_s, end_s = kernel.start_ns * NS, kernel.end_ns * NS
        before = spans[place]
        spans[place] = (
            Span(start_s, end_s, late_s.get(place, 0.0))
            if before is NO_SPAN
            else Span(min(before.start_s, start_s), max(before.end_s, end_s), before.waiting_s)
        )
    slots = []
    for place, op in enumerate(trace.ops):
        charge = charged[place]
        if kernel_s[place] <= 0 and charge.own_s + charge.idle_s <= 0:
            slots.append(NOTHING)
            continue
        bound = bound_of(costs[op.call].kind, modelled[op.call], charge)
        slots.append(
            Slot(
                charge.own_s + charge.idle_s,
                kernel_s[place],
                bound,
                False,
                charge.waiting_s,
                charge.idle_s,
            )
        )
    return Times(
        roofline=own,
        slots=tuple(slots),
        spans=tuple(spans),
        is_measured=True,
        kernels_s=tuple(
            0.0 if (model := modelled[op.call]) is None else model.seconds for op in trace.ops
        ),
    )


def predicted_kernel(
    trace: Trace, number: int, cost: CallCost, roofline: Roofline
) -> Kernel | None:
    """None for a call that the roofline cannot time."""
    if cost.kind.is_free or cost.kind is Kind.UNCOUNTED or cost.failure:
        return None
    try:
        return roofline.kernel(trace.calls[number], cost.kind, cost.exact)
    except UsageError:
        return None
    except Exception:  # a call whose shapes no model foresaw: it is shown as not predicted
        return None


def late_ranks(
    traces: Sequence[Trace], costs: Sequence[Sequence[CallCost]]
) -> list[dict[int, float]]:
    """What each rank's collectives wait for others, by the operator's place.

    Hosts' clocks differ, so beginnings say nothing. But the last rank to come waits for nobody: a
    collective takes what it takes there, and longer by their waiting on the others. Ranks' n-th
    collectives of a group are one; a group of which ranks recorded different numbers is left out.
    """
    rows: list[dict[object, list[tuple[int, float]]]] = []
    for trace, of_calls in zip(traces, costs, strict=True):
        seconds: dict[int, float] = {}
        for kernel in trace.measured.kernels if trace.measured is not None else ():
            seconds[kernel.op] = seconds.get(kernel.op, 0.0) + kernel.duration_ns * NS
        by_group: dict[object, list[tuple[int, float]]] = {}
        for place in sorted(seconds):
            call = trace.ops[place].call
            number = trace.calls[call].literal("group")
            if of_calls[call].kind is Kind.COMMUNICATION and isinstance(number, int):
                group = trace.groups[number]
                by_group.setdefault((group.name, group.ranks), []).append((place, seconds[place]))
        rows.append(by_group)
    late: list[dict[int, float]] = [{} for _ in traces]
    for key in rows[0] if rows else ():
        columns = [row.get(key, []) for row in rows]
        if len(columns) < 2 or len({len(column) for column in columns}) > 1:
            continue
        for together in zip(*columns, strict=True):
            least_s = min(seconds for _, seconds in together)
            for rank, (place, seconds) in enumerate(together):
                late[rank][place] = seconds - least_s
    return late


def charges_of(
    trace: Trace, measured: Measured, costs: Sequence[CallCost], late_s: Mapping[int, float]
) -> list[Charge]:
    """What each operator is charged, all its kernels together."""
    network = Kind.COMMUNICATION
    per_kernel = charges(
        [
            Span(kernel.start_ns * NS, kernel.end_ns * NS, late_s.get(kernel.op, 0.0))
            for kernel in measured.kernels
        ],
        [costs[trace.ops[kernel.op].call].kind is network for kernel in measured.kernels],
    )
    totals = [Charge()] * len(trace.ops)
    for kernel, charge in zip(measured.kernels, per_kernel, strict=True):
        before = totals[kernel.op]
        totals[kernel.op] = Charge(*(a + b for a, b in zip(before, charge, strict=True)))
    return totals


def bound_of(kind: Kind, kernel: Kernel | None, charge: Charge) -> Bound:
    """What most of an operator's time goes into."""
    if charge.idle_s > charge.own_s:
        return Bound.OVERHEAD
    if kind is Kind.COMMUNICATION:
        return Bound.BUBBLE if charge.waiting_s > charge.own_s / 2 else Bound.NETWORK
    return Bound.OVERHEAD if kernel is None else kernel.bound
