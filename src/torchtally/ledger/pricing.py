"""What each distinct call costs: its FLOPs and its bytes, by a convention and by none."""

from typing import NamedTuple

from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of
from torchtally.work.convention import Convention, apply_convention


class CallCost(NamedTuple):
    kind: Kind
    cost: Cost
    """By the ledger's convention."""
    failure: str
    """Why it is unknown; "" where it is known or has no rule."""
    exact: Cost
    """By no convention: what a kernel skips under a causal mask does not depend on how we count."""


UNRECORDED = "what it was called with was not recorded"


def call_cost(call: Call, convention: Convention) -> CallCost:
    if not call.is_recorded:
        is_sent = call.name.startswith(("c10d.", "nccl."))
        kind = Kind.COMMUNICATION if is_sent else Kind.UNCOUNTED
        return CallCost(kind, Cost(), UNRECORDED, Cost())
    try:
        kind, cost = cost_of(call)
    except Exception as error:  # one unforeseen call must not cost the user the whole report
        failure = f"its rule failed: {type(error).__name__}: {error}"
        return CallCost(Kind.UNCOUNTED, Cost(), failure, Cost())
    return CallCost(kind, apply_convention(cost, call, kind, convention), "", cost)
