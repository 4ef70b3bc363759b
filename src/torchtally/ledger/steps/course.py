"""The course of a run: its training steps, which of them are alike, and which share a model."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from torchtally.errors import UsageError
from torchtally.ledger.steps.evaluation import with_evaluation
from torchtally.ledger.steps.flow import Flow
from torchtally.ledger.steps.generation import TokenGeneration, with_generations
from torchtally.ledger.steps.rollouts import with_rollouts
from torchtally.ledger.steps.signature import (
    Signature,
    StepSignature,
    agree,
    difference,
    signatures,
)
from torchtally.ledger.steps.weight_copies import WeightCopies
from torchtally.trace import Phase, Role, Trace


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A completed training step: the ticks [first, end). The first one has all before it."""

    number: int
    """From one."""
    first: int
    end: int
    experiment: int
    """From one. A step that updates none of the weights of those before begins another."""
    like: int
    """The first step of the experiment that runs the same; its own number if none."""
    signature: Signature
    new: Signature
    """Without what a first step lacks by nature."""


@dataclass(frozen=True, slots=True)
class Period:
    """The part of a run that totals are of: the ticks [first, end)."""

    name: str
    first: int
    end: int
    steps: int
    """Completed training steps in it."""
    has_evaluation: bool
    """Evaluation is in the totals; it is not in those of a single step."""
    step: TrainingStep | None = None
    """Where the period is a single step."""
    generation: TokenGeneration | None = None
    """Where the period is one."""


@dataclass(frozen=True, slots=True)
class Course:
    """The steps of a run. `trace` has its evaluation separated, or its prefill and decode."""

    trace: Trace
    steps: tuple[TrainingStep, ...]
    generations: tuple[TokenGeneration, ...] = ()
    """Of a run that trains nothing."""
    rollouts: tuple[TokenGeneration, ...] = ()
    """Of a run that trains on what it generates: parts of its steps."""

    @property
    def experiments(self) -> int:
        return self.steps[-1].experiment if self.steps else 0

    def alike(self, step: TrainingStep) -> tuple[TrainingStep, ...]:
        """The steps that run what this one runs, itself among them."""
        return tuple(other for other in self.steps if other.like == step.like)

    def is_steady(self, step: TrainingStep) -> bool:
        """Another step before it has run the same."""
        return step.like < step.number

    def is_first(self, step: TrainingStep) -> bool:
        """Whether a step is the first of its model: it has all before it."""
        return step.number == 1 or self.steps[step.number - 2].experiment != step.experiment

    @property
    def representative(self) -> TrainingStep | None:
        """The last step that is steady, else the last one; None without a completed step."""
        steady = [step for step in self.steps if self.is_steady(step)]
        return (steady or self.steps or (None,))[-1]

    # Periods.

    def default_period(self) -> Period:
        """The representative step, or generation; the whole run where it has neither, or came to
        its end and has several experiments.
        """
        if self.generations:
            return self.of_generation(self.longest_generation)
        step = self.representative
        if step is None or (self.experiments > 1 and self.trace.ending.kind == "exit"):
            return self.whole()
        return self.single(step)

    @property
    def longest_generation(self) -> TokenGeneration:
        """The last one of those with most tokens: none before it was a warm-up for it."""
        return max(reversed(self.generations), key=lambda each: len(each.decodes))

    def of_generation(self, generation: TokenGeneration) -> Period:
        count = len(self.generations)
        name = "generation" + (f" {generation.number} of {count}" if count > 1 else "")
        return Period(
            f"the {name}", generation.first, generation.end, 0, False, generation=generation
        )

    def single(self, step: TrainingStep) -> Period:
        return Period(self._name(step), step.first, step.end, 1, False, step)

    def _name(self, step: TrainingStep) -> str:
        if self.is_steady(step):
            return f"steady-state step {step.number}"
        if self.trace.measured is not None:
            return f"recorded step {step.number}"
        if step.number == 1:
            return "step 1 (with all before it)"
        if self.is_first(step):
            return f"step {step.number} (the first of another model)"
        return f"step {step.number} (unlike those before it)"

    def whole(self) -> Period:
        count = len(self.steps)
        steps = f"{count} training step{'s' * (count > 1)}" if count else ""
        name = f"the whole run ({steps or 'no training step was completed'})"
        if self.trace.measured is not None:
            name = f"all that was recorded{f' ({steps})' * bool(steps)}"
        return Period(name, 0, self.trace.end, count, True)

    def span(self, first: int, last: int) -> Period:
        """Span from the first step to the last one. Raises UsageError for steps that were not
        run.
        """
        if last > len(self.steps) or first > last:
            ran = f"steps 1 to {len(self.steps)}" if self.steps else "no step at all"
            wanted = f"{first}" if first == last else f"{first}..{last}"
            was_stopped = self.trace.ending.kind == "steps" and first <= last
            more = f"\nTrace more: `tally run --steps {last}`." if was_stopped else ""
            raise UsageError(f"--step {wanted}: the run completed {ran}.{more}")
        if first == last:
            return self.single(self.steps[first - 1])
        start, end = self.steps[first - 1].first, self.steps[last - 1].end
        return Period(f"steps {first} to {last}", start, end, last - first + 1, True)

    def difference(self, step: TrainingStep, other: TrainingStep) -> str:
        """What the other step runs otherwise, in words."""
        return difference(self.trace, step.signature, other.signature)


def course_of(trace: Trace) -> Course:
    """The course of a run, from its trace as recorded."""
    flow = Flow(trace)
    # What reads what is not in a profiler's file: nothing tells evaluation apart.
    if trace.measured is not None:
        return Course(trace, tuple(_steps(flow)))
    if not trace.step_ends:
        told_apart, generations = with_generations(flow)
        return Course(told_apart, (), generations)
    copies = WeightCopies(flow)
    if copies.copies:
        flow = Flow(copies.told_apart(trace))
    generated, rollouts = with_rollouts(flow)
    if rollouts:
        flow = Flow(generated)
    told_apart = with_evaluation(generated, flow)
    if any(s.role is Role.PARAMETER and not s.is_trained for s in trace.storages):
        # Once evaluation is told apart: an average that nothing else computes with.
        copies = WeightCopies(Flow(told_apart))
        if copies.copies:
            told_apart, flow = copies.told_apart(told_apart), Flow(copies.told_apart(generated))
    return Course(told_apart, tuple(_steps(flow)), rollouts=rollouts)


def _steps(flow: Flow) -> Iterator[TrainingStep]:
    trace = flow.trace
    firsts = (0, *trace.step_ends)
    experiments = _experiments(trace)
    all_signatures = signatures(flow)
    likes = _likes(experiments, all_signatures)
    for place, end in enumerate(trace.step_ends):
        yield TrainingStep(
            place + 1, firsts[place], end, experiments[place], likes[place], *all_signatures[place]
        )


def _experiments(trace: Trace) -> list[int]:
    """The experiment of each step: another one where none of the weights so far are updated."""
    experiments: list[int] = []
    weights: set[int] = set()
    first = 0
    for end in trace.step_ends:
        updated = _parameters_updated(trace, first, end)
        if not experiments or (updated and weights and weights.isdisjoint(updated)):
            experiments.append(experiments[-1] + 1 if experiments else 1)
            weights = updated
        else:
            experiments.append(experiments[-1])
            weights |= updated
        first = end
    return experiments


def _parameters_updated(trace: Trace, first: int, end: int) -> set[int]:
    """The parameters that the optimizer's phase of a step reads or writes."""
    clock, optimizer, parameter = attrgetter("clock"), Phase.OPTIMIZER, Role.PARAMETER
    places = (bisect_left(trace.ops, tick, key=clock) for tick in (first, end))
    numbers: set[int] = set()
    for op in trace.ops[slice(*places)]:
        if op.phase is optimizer:
            numbers.update(op.inputs, op.outputs)
    return {n for n in numbers if n >= 0 and trace.storages[n].role is parameter}


def _likes(experiments: Sequence[int], all_signatures: Sequence[StepSignature]) -> list[int]:
    """Numbers, for each step, of the first one of its experiment that runs the same."""
    likes: list[int] = []
    latest: dict[int, int] = {}
    """By the first step of a kind, the last one: it has nothing before it any more."""
    for number, signature in enumerate(all_signatures, 1):
        experiment = experiments[number - 1]
        kinds = [kind for kind in latest if experiments[kind - 1] == experiment]
        like = number
        for kind in kinds:
            known = latest[kind]
            is_first = known == 1 or experiments[known - 2] != experiment
            if agree(all_signatures[known - 1], signature, is_first=is_first):
                like = kind
                break
        latest[like] = number
        likes.append(like)
    return likes
