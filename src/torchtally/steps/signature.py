"""What a training step runs, as far as another step must run it, too, to be called alike.

A signature has, for each phase, the calls (operator, shapes, dtypes, literals) in order. Left out
are views and sleeps, and of the forward pass what no backward pass depends on or what depends on no
weights: batches that are loaded, losses that are printed now and then.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from torchtally.steps.evaluation import STATE
from torchtally.steps.flow import Flow
from torchtally.trace import Op, Phase, Trace

Signature = Mapping[Phase, tuple[int, ...]]
"""Numbers of calls by phase."""

PHASES = (
    Phase.PREFILL, Phase.DECODE, Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.OPTIMIZER,
)  # fmt: skip
MOST_DIFFERENCES = 3


def signatures(flow: Flow) -> list[Signature]:
    """Signatures of every completed step of a trace, in order."""
    left_out, is_view = _left_out(flow), flow.is_view
    places = [bisect_left(flow.ops, end, key=clock) for end in (0, *flow.trace.step_ends)]
    all_signatures: list[Signature] = []
    for first, end in pairwise(places):
        # By the phase's id: looking up an enum's member and hashing it run Python code.
        calls: dict[int, list[int]] = {id(phase): [] for phase in Phase}
        for place in range(first, end):
            op = flow.ops[place]
            if not is_view[op.call] and not flow.is_sleep[op.call] and place not in left_out:
                calls[id(op.phase)].append(op.call)
        all_signatures.append({phase: tuple(calls[id(phase)]) for phase in PHASES})
    return all_signatures


def clock(op: Op) -> int:
    return op.clock


def _left_out(flow: Flow) -> set[int]:
    """Operators of the forward pass that are not trained, or that only prepare data."""
    storages, forward = flow.trace.storages, Phase.FORWARD
    left_out = set(flow.untrained)
    data: set[int] = {-1}
    is_view, differentiated = flow.is_view, flow.differentiated
    for place, op in enumerate(flow.ops):
        if op.phase is not forward or is_view[op.call] or op.clock in differentiated:
            continue
        if data.issuperset(op.inputs):
            left_out.add(place)
            data.update(n for n in op.outputs if n >= 0 and storages[n].role not in STATE)
    return left_out


def agree(earlier: Signature, later: Signature, *, is_first: bool) -> bool:
    """Whether two steps run the same. The first one may run more between what the later one runs,
    and in its order: it has all before it, and makes the optimizer's state.
    """
    return all(_agrees(earlier[phase], later[phase], is_first) for phase in PHASES)


def _agrees(earlier: tuple[int, ...], later: tuple[int, ...], is_first: bool) -> bool:
    if not is_first or not later:
        return earlier == later
    rest = iter(earlier)
    return all(call in rest for call in later)


def difference(trace: Trace, reported: Signature, other: Signature) -> str:
    """What the other step runs that the reported one does not, and the reverse, in words."""
    parts = [part for phase in PHASES for part in _changes(trace, reported, other, phase)]
    more = len(parts) - MOST_DIFFERENCES
    return ", ".join(parts[:MOST_DIFFERENCES]) + (f", and {more} more" if more > 0 else "")


def _changes(trace: Trace, reported: Signature, other: Signature, phase: Phase) -> Iterator[str]:
    ours, theirs = reported[phase], other[phase]
    if ours == theirs:
        return
    names, other_names = _names(trace, ours), _names(trace, theirs)
    if names == other_names:
        is_same = Counter(ours) == Counter(theirs)
        yield f"{phase} in another order" if is_same else f"{phase} with other shapes"
        return
    changes = {name: other_names[name] - count for name, count in names.items()}
    changes |= {name: count for name, count in other_names.items() if name not in names}
    for name, change in sorted(changes.items(), key=lambda item: -abs(item[1])):
        if change:
            yield f"{abs(change)} {'more' if change > 0 else 'fewer'} {name} in {phase}"


def _names(trace: Trace, calls: Sequence[int]) -> Counter[str]:
    names: Counter[str] = Counter()
    for number, count in Counter(calls).items():
        names[trace.calls[number].name] += count
    return names
