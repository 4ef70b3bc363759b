"""Evaluation distinguished from training: forward work that no backward pass follows.

An operator of the forward pass is *trained* when a backward pass runs its autograd node or reads
what it wrote, directly or through other operators. What reads the values of training (a metric of
the batch, a loss that is printed), what sets or averages weights, and what only prepares data
belongs to the step, too; so does all that runs between the first and the last trained operator of a
forward pass, as the deeper half of a network of which a loss takes the upper features. The rest is
evaluation: a validation loop, sampling, a benchmark. What a step generates to train on is told
apart before (`rollouts.py`).

A view has no storage of its own. It belongs with the operator that reads its storage next. The
script's own sleeps are evaluation where they are amid it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from msgspec.structs import replace

from torchtally.ledger.steps.flow import Flow
from torchtally.trace import Phase, Role, Trace

STATE = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.GRADIENT})


def with_evaluation(trace: Trace, flow: Flow) -> Trace:
    """The trace with `Phase.EVALUATION` for evaluation between training steps.

    Also for what follows the last step of a script that ran to its end, or out of memory in an
    evaluation. A step without a backward pass, or a run without a completed step, has nothing to
    distinguish evaluation from.
    """
    if not trace.step_ends:
        return trace
    has_ended = trace.ending.kind == "exit"
    evaluation = _evaluation_before(trace.end if has_ended else trace.step_ends[-1], flow)
    if not has_ended and _ran_out_in_evaluation(trace, evaluation):
        evaluation = _evaluation_before(trace.end, flow)
    if not evaluation:
        return trace
    ops = tuple(
        replace(op, phase=Phase.EVALUATION) if place in evaluation else op
        for place, op in enumerate(trace.ops)
    )
    return replace(trace, ops=ops)


def _ran_out_in_evaluation(trace: Trace, evaluation: set[int]) -> bool:
    """Whether memory ran out, without autograd, in code that no training step has run."""
    refusal, last = trace.final_refusal, trace.step_ends[-1]
    if refusal is None or refusal.builds_graph or refusal.tick < last:
        return False
    first = bisect_left(trace.ops, last, key=attrgetter("clock"))
    of_training = {op.site for place, op in enumerate(trace.ops[:first]) if place not in evaluation}
    tail = trace.ops[first:]
    is_forward = all(op.phase is Phase.FORWARD for op in tail)
    return is_forward and of_training.isdisjoint({refusal.site, *(op.site for op in tail)})


def _evaluation_before(end: int, flow: Flow) -> set[int]:
    """Places of the operators of evaluation that ran before a tick."""
    trace = flow.trace
    differentiated = _steps_differentiated(trace)
    amid = _amid_training(flow)
    untrained = [
        place
        for place in flow.untrained
        if (tick := trace.ops[place].clock) < end
        and differentiated[bisect_right(trace.step_ends, tick)]
        and place not in amid
    ]
    evaluation = _evaluation(flow, untrained)
    if evaluation:
        evaluation |= _views(flow, evaluation, end)
        evaluation |= _sleeps(flow, evaluation, end)
    return evaluation


def _steps_differentiated(trace: Trace) -> list[bool]:
    """Whether each step has a backward pass; what follows the last one counts as if it had."""
    ends = trace.step_ends
    differentiated = [False] * len(ends) + [True]
    backward = Phase.BACKWARD
    for op in trace.ops:
        if op.phase is backward:
            differentiated[bisect_right(ends, op.clock)] = True
    return differentiated


def _amid_training(flow: Flow) -> set[int]:
    """The forward pass's operators with trained ones before and after them, and nothing of another
    phase in between.
    """
    amid: set[int] = set()
    waiting: list[int] = []
    is_within = False
    forward = Phase.FORWARD
    for place, op in enumerate(flow.ops):
        if op.phase is not forward:
            is_within = False
            waiting.clear()
        elif op.clock in flow.differentiated:
            amid.update(waiting)
            is_within = True
            waiting.clear()
        elif is_within:
            waiting.append(place)
    return amid


def _evaluation(flow: Flow, untrained: Sequence[int]) -> set[int]:
    """Those of the untrained that neither read training's values nor prepare anything."""
    if not untrained:
        return set()
    ops, kept = flow.ops, flow.outliving_storages
    apart, weighted = _apart(flow, untrained, kept)
    joined = set(untrained) - apart
    prepared = set(chain.from_iterable(ops[place].inputs for place in joined)) | kept
    prepared.discard(-1)
    for place in reversed(untrained):
        op = ops[place]
        is_weightless = place in apart and place not in weighted
        if is_weightless and not prepared.isdisjoint(flow.written_storages(op)):
            apart.discard(place)
            prepared.update(number for number in op.inputs if number >= 0)
    return apart


def _apart(flow: Flow, untrained: Sequence[int], kept: set[int]) -> tuple[set[int], set[int]]:
    """(those that read nothing of training, those of them that depend on parameters)."""
    apart: set[int] = set()
    weighted: set[int] = set()
    joined: set[int] = set()
    # Looks at what was loaded for training, and leads nowhere: a check of the batch.
    of_batch: set[int] = set()
    candidates = set(untrained)
    storages = flow.trace.storages
    for place in untrained:
        op = flow.ops[place]
        numbers = [number for number in op.inputs if number >= 0]
        roles = [storages[number].role for number in numbers]
        if _keeps_state(flow, place, numbers, roles, kept):
            continue
        makers = [
            flow.maker(number)
            for number, role in zip(numbers, roles, strict=True)
            if role not in STATE
        ]
        if Role.GRADIENT in roles or any(
            maker in joined or flow.is_differentiated(maker) for maker in makers
        ):
            joined.add(place)
            continue
        if Role.PARAMETER in roles or any(maker in weighted for maker in makers):
            weighted.add(place)
        elif any(
            maker in of_batch or (maker is not None and maker not in candidates)
            for number, role in zip(numbers, roles, strict=True)
            if role not in STATE and storages[number].born >= _first_tick(flow.trace, op.clock)
            for maker in (flow.maker(number),)
        ):
            of_batch.add(place)
            continue
        apart.add(place)
    return apart, weighted


def _first_tick(trace: Trace, tick: int) -> int:
    """First tick of the step that a tick lies in."""
    step = bisect_right(trace.step_ends, tick)
    return trace.step_ends[step - 1] if step else 0


def _keeps_state(
    flow: Flow, place: int, numbers: Sequence[int], roles: Sequence[Role | None], kept: set[int]
) -> bool:
    """Sets or averages weights, or keeps statistics: work of the step, whatever it reads."""
    changed = flow.changed_storages(place)
    if any(number in kept or flow.trace.storages[number].role in STATE for number in changed):
        return True
    is_of_state = bool(numbers) and all(role in STATE for role in roles)
    return is_of_state and not kept.isdisjoint(flow.written_storages(flow.ops[place]))


def _views(flow: Flow, evaluation: set[int], end: int) -> set[int]:
    """The forward pass's views that evaluation reads next, or that nothing reads within it."""
    views: set[int] = set()
    reader_is_apart: dict[int, bool] = {}
    is_apart = False
    forward = Phase.FORWARD
    for place in range(len(flow.ops) - 1, -1, -1):
        op = flow.ops[place]
        if flow.is_sleep[op.call]:
            continue
        if op.phase is forward and flow.is_view[op.call]:
            number = max(op.inputs, default=-1)
            if op.clock < end and reader_is_apart.get(number, is_apart):
                views.add(place)
            continue
        is_apart = place in evaluation
        for number in (*op.inputs, *op.outputs):
            reader_is_apart[number] = is_apart
    return views


def _sleeps(flow: Flow, evaluation: set[int], end: int) -> set[int]:
    """The script's own sleeps amid evaluation; one on its border belongs to the step."""
    sleeps: set[int] = set()
    waiting: list[int] = []
    is_apart = False
    for place, op in enumerate(flow.ops):
        if flow.is_sleep[op.call]:
            if is_apart and op.clock < end:
                waiting.append(place)
            continue
        is_apart = place in evaluation
        if is_apart:
            sleeps.update(waiting)
        waiting.clear()
    return sleeps
