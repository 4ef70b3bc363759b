"""Generation within training: sequences that a step generates, and then learns from (GRPO, PPO).

Most libraries take generated ids to the host and bring them back, so nothing that operators read
ties a generation to its training. It belongs to the step when a later pass that a backward pass
follows runs over sequences of just that length: the prompt's tokens and all generated ones, or all
but the last. Other generations between steps are samples to look at: evaluation.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from torchtally.ledger.steps.flow import Flow
from torchtally.ledger.steps.generation import TokenGeneration, generations_among, told_apart
from torchtally.ledger.steps.passes import ModelPass, passes_of
from torchtally.trace import Phase, Trace


def with_rollouts(flow: Flow) -> tuple[Trace, tuple[TokenGeneration, ...]]:
    """The trace with the phases and caches of what it generates to train on, and that.

    The trace as it is, and none, of a run that completes no step.
    """
    trace = flow.trace
    if not trace.step_ends or not any(op.phase is Phase.BACKWARD for op in trace.ops):
        return trace, ()
    passes = passes_of(flow)
    trained = [_is_trained(flow, each) for each in passes]
    rollouts: list[TokenGeneration] = []
    caches: set[int] = set()
    for stretch in _stretches(flow, passes, trained):
        generations, cache = generations_among(
            flow, [passes[place] for place in stretch], len(rollouts) + 1
        )
        learners = [passes[place] for place in range(stretch.stop, len(passes)) if trained[place]]
        chosen = [each for each in generations if _is_learnt_from(flow, each, learners)]
        if chosen:
            rollouts += chosen
            caches |= cache
    return told_apart(trace, rollouts, caches), tuple(rollouts)


def _is_trained(flow: Flow, each: ModelPass) -> bool:
    """A backward pass ran its operators' nodes."""
    return any(op.clock in flow.differentiated for op in flow.ops[each.first : each.inner_end])


def _stretches(flow: Flow, passes: Sequence[ModelPass], trained: Sequence[bool]) -> Iterator[range]:
    """Places of passes in a row that are not trained, within one step."""
    ends = flow.trace.step_ends
    kinds = [
        (is_trained, bisect_right(ends, flow.ops[each.first].clock))
        for each, is_trained in zip(passes, trained, strict=True)
    ]
    for (is_trained, _), group in groupby(range(len(passes)), kinds.__getitem__):
        if not is_trained:
            places = list(group)
            yield range(places[0], places[-1] + 1)


def _is_learnt_from(flow: Flow, generation: TokenGeneration, learners: Sequence[ModelPass]) -> bool:
    """The next pass that is trained has as many tokens as this leaves, of these sequences or a part
    of them.
    """
    given = sum(each.tokens for each in generation.prefills)
    decoded = sum(each.tokens for each in generation.decodes)
    last = generation.decodes[-1]
    learner = next(
        (each for each in learners if flow.ops[each.first].clock >= generation.end), None
    )
    return (
        learner is not None
        and learner.tokens in (given + decoded, given + decoded + 1)
        and last.sequences % learner.sequences == 0
    )
