"""Steps that agree in their figures: other operators, orders or shapes of the same work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchtally.ledger.pricing import CallCost
from torchtally.ledger.steps import Course, TrainingStep
from torchtally.ledger.steps.signature import PHASES
from torchtally.trace import Phase

OPTIMIZER = (Phase.OPTIMIZER,)
PASSES = tuple(phase for phase in PHASES if phase is not Phase.OPTIMIZER)


class StepFigures(NamedTuple):
    """Work of a step's phases, or fractions of it."""

    flops: float
    bytes: float
    operators: float


TOLERANCES = StepFigures(flops=0.01, bytes=0.05, operators=0.05)
"""Fractions by which steps that agree may differ. A step bound by overhead takes as long as its
operators are many; bytes vary with what a compiler fuses."""


def with_like_figures(course: Course, costs: Sequence[CallCost]) -> Course:
    """The course in which steps are alike, too, that agree in their figures."""
    if all(course.is_steady(step) for step in course.steps[1:]):
        return course
    figures = CourseFigures(course, costs)
    kinds: list[TrainingStep] = []
    likes: dict[int, int] = {}
    for step in course.steps:
        if step.like == step.number:
            others = (kind for kind in kinds if kind.experiment == step.experiment)
            same = next((kind for kind in others if StepPair(kind, step, figures).agrees), step)
            likes[step.number] = same.number
            if same is step:
                kinds.append(step)
    steps = tuple(replace(step, like=likes[step.like]) for step in course.steps)
    return replace(course, steps=steps)


class CourseFigures:
    """Figures of a run's steps, each computed once."""

    def __init__(self, course: Course, costs: Sequence[CallCost]) -> None:
        self.course = course
        self._costs = costs
        self._figures: dict[tuple[int, bool, Sequence[Phase]], StepFigures] = {}

    def of(self, step: TrainingStep, phases: Sequence[Phase], *, is_new: bool) -> StepFigures:
        """Work of a step in some phases; `is_new` without what a first step lacks by nature."""
        key = (step.number, is_new, phases)
        if key not in self._figures:
            signature = step.new if is_new else step.signature
            calls = [call for phase in phases for call in signature[phase]]
            costs = [self._costs[call].cost for call in calls]
            self._figures[key] = StepFigures(
                sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs), len(calls)
            )
        return self._figures[key]


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two steps of a model, by their figures."""

    earlier: TrainingStep
    later: TrainingStep
    of_course: CourseFigures

    @property
    def agrees(self) -> bool:
        return self.passes_agree and self._agrees_in(OPTIMIZER)

    @property
    def passes_agree(self) -> bool:
        return self._agrees_in(PASSES)

    @property
    def figures(self) -> tuple[StepFigures, StepFigures]:
        """What is apart: the passes, or the whole steps where these agree."""
        phases = PHASES if self.passes_agree else PASSES
        of = self.of_course.of
        return of(self.earlier, phases, is_new=False), of(self.later, phases, is_new=False)

    def _agrees_in(self, phases: Sequence[Phase]) -> bool:
        is_first = self.of_course.course.is_first(self.earlier)
        makes_state = is_first and phases is OPTIMIZER
        earlier = self.of_course.of(self.earlier, phases, is_new=False)
        later = self.of_course.of(self.later, phases, is_new=is_first)
        return all(
            abs(one - other) <= tolerance * max(one, other) or (makes_state and other <= one)
            for one, other, tolerance in zip(earlier, later, TOLERANCES, strict=True)
        )
