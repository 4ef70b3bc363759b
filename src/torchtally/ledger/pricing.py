"""What each distinct call costs: its FLOPs, its bytes and its kernel's time."""

from collections.abc import Iterable
from typing import NamedTuple

from torchtally.errors import UsageError
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.schedule import Price, priced
from torchtally.trace import Call, Op
from torchtally.work import Cost, Kind, cost_of
from torchtally.work.convention import Attention, conventional


class Priced(NamedTuple):
    """What one call costs, and the reasons for what is not known of it."""

    kind: Kind
    cost: Cost
    """Under the ledger's convention."""
    failure: str
    time: Price
    time_failure: str
    exact: Cost
    """Under none: what a causal mask leaves out of a kernel does not depend on how we count."""


def price(ops: Iterable[Op], attention: Attention, roofline: Roofline | None) -> dict[int, Priced]:
    """Kind, cost and time of each distinct call, by its identity: ops share calls."""
    calls = {id(op.call): op.call for op in ops}
    return {key: price_of(call, attention, roofline) for key, call in calls.items()}


def price_of(call: Call, attention: Attention, roofline: Roofline | None) -> Priced:
    try:
        kind, cost = cost_of(call)
    except Exception as error:  # one unforeseen call must not cost the user the whole report
        failure = f"its rule failed: {type(error).__name__}: {error}"
        return Priced(Kind.UNCOUNTED, Cost(), failure, free(Kind.UNCOUNTED), failure, Cost())
    time, failure = time_of(call, kind, cost, roofline)
    return Priced(kind, conventional(cost, call, kind, attention), "", time, failure, cost)


def time_of(call: Call, kind: Kind, cost: Cost, roofline: Roofline | None) -> tuple[Price, str]:
    """(its time, why that is not known)."""
    if roofline is None or kind.is_free:
        return free(kind), ""
    try:
        return priced(call, kind, cost, roofline), ""
    except UsageError as error:
        return free(kind), str(error)
    except Exception as error:  # a call whose shapes no model foresaw
        return free(kind), f"its time: {type(error).__name__}: {error}"


def free(kind: Kind) -> Price:
    return Price(Kernel(0.0, Bound.OVERHEAD), kind, 0)
