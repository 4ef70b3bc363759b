"""What a training step runs, as far as another step must run it, too, to be called alike.

A signature has, for each phase, the calls (operator, shapes, dtypes, literals) in order. Left out
are views and sleeps, and of the forward pass what no backward pass depends on or what depends on no
weights: batches that are loaded, losses that are printed now and then.

The first step lacks by nature what works on what a step leaves to the next: gradients that are
zeroed and added to, the optimizer's state, and what follows an optimizer's step (a scaler's update,
weights that are clipped or gathered, a bucket that is zeroed), which is the next step's, since a
step ends with its optimizer's. DDP reduces in other buckets after its first backward pass.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from torchtally.ledger.steps.evaluation import STATE
from torchtally.ledger.steps.flow import Flow
from torchtally.trace import Op, Phase, Role, Trace

Signature = Mapping[Phase, tuple[int, ...]]
"""Numbers of calls by phase."""

PHASES = (
    Phase.PREFILL, Phase.DECODE, Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.OPTIMIZER,
)  # fmt: skip
MOST_DIFFERENCES = 3
CARRIED = frozenset({Role.GRADIENT, Role.OPTIMIZER_STATE})
"""What a step leaves to the next."""
COLLECTIVES = "c10d."


class StepSignature(NamedTuple):
    """What a step runs, and that without what a first step lacks by nature."""

    whole: Signature
    new: Signature


def signatures(flow: Flow) -> list[StepSignature]:
    """Signatures of every completed step of a trace, in order."""
    left_out, is_view, is_sleep = _left_out(flow), flow.is_view, flow.is_sleep
    places = [bisect_left(flow.ops, end, key=clock) for end in (0, *flow.trace.step_ends)]
    all_signatures: list[StepSignature] = []
    for first, end in pairwise(places):
        ops = [
            op
            for place, op in enumerate(flow.ops[first:end], first)
            if place not in left_out and not is_view[op.call] and not is_sleep[op.call]
        ]
        all_signatures.append(StepSignature(_signature(ops), _signature(_new(flow, ops))))
    return all_signatures


def _signature(ops: Iterable[Op]) -> Signature:
    # By the phase's id: looking up an enum's member and hashing it run Python code.
    calls: dict[int, list[int]] = {id(phase): [] for phase in Phase}
    for op in ops:
        calls[id(op.phase)].append(op.call)
    return {phase: tuple(calls[id(phase)]) for phase in PHASES}


def _new(flow: Flow, ops: Sequence[Op]) -> Iterator[Op]:
    """The operators of a step that the first step has, too."""
    storages, calls, backward, optimizer = (
        flow.trace.storages,
        flow.trace.calls,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    )
    first = ops[0].clock if ops else 0
    has_backward = False
    for op in ops:
        has_backward = has_backward or op.phase is backward
        follows_step = not has_backward and (
            op.phase is optimizer
            or any(n >= 0 and storages[n].born < first for n in flow.written_storages(op))
        )
        reduces = op.phase is backward and calls[op.call].name.startswith(COLLECTIVES)
        if follows_step or reduces:
            continue
        carried = (storages[n] for n in op.inputs if n >= 0)
        if not any(each.role in CARRIED and each.born < first for each in carried):
            yield op


def clock(op: Op) -> int:
    return op.clock


def _left_out(flow: Flow) -> set[int]:
    """Operators of the forward pass that are not trained, or that only prepare data."""
    storages, forward = flow.trace.storages, Phase.FORWARD
    left_out = set(flow.untrained)
    data: set[int] = {-1}
    is_view, differentiated = flow.is_view, flow.differentiated
    for place, op in enumerate(flow.ops):
        is_prepared = data.issuperset(op.inputs)
        if not is_prepared:
            data.difference_update(n for n in flow.written_storages(op) if n >= 0)
        if op.phase is not forward or is_view[op.call] or op.clock in differentiated:
            continue
        if is_prepared:
            left_out.add(place)
            data.update(n for n in op.outputs if n >= 0 and storages[n].role not in STATE)
    return left_out


def agree(earlier: StepSignature, later: StepSignature, *, is_first: bool) -> bool:
    """Whether two steps run the same. The first one may run more, and in another order: it has all
    before it, makes the optimizer's state, and fills DDP's buckets as parameters were registered.
    """
    if not is_first:
        return earlier.whole == later.whole
    return all(_is_in_first(earlier.whole[phase], later, phase) for phase in PHASES)


def _is_in_first(earlier: tuple[int, ...], later: StepSignature, phase: Phase) -> bool:
    if not later.whole[phase]:
        return not earlier
    return not Counter(later.new[phase]) - Counter(earlier)


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
