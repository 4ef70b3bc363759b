"""Smallest value from which a step is compute-bound, or has an MFU: the search and its answer.

No processes, no torch. Whether it is met is assumed to grow with the value, as batches make
products larger: a value is doubled until it is met or the run fails, and what lies between is
halved. The answer is no guess: it was seen to be met, and the value before it not to be.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torchtally.fit.search import Values
from torchtally.ledger import Entry, Ledger, line_of, module_of
from torchtally.timing.roofline.kernel import Bound
from torchtally.views.bottlenecks import seconds_by_bound
from torchtally.views.lines import line_texts, root_of
from torchtally.views.summary import reserved_bytes_of
from torchtally.views.throughput import throughput
from torchtally.views.utilisation import model_utilisation

STEP = "step"
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached: one of the two."""

    compute_bound: str | None = None
    """"step", a line ("train.py:41") or a module ("layers.0.mlp") with all in it: more than half of
    its time is spent in compute-bound kernels."""
    mfu: float | None = None
    """Of the step, at least."""

    @property
    def scope(self) -> str:
        return self.compute_bound or STEP

    def is_met(self, point: "StepPoint") -> bool:
        if self.mfu is not None:
            return point.mfu is not None and point.mfu >= self.mfu
        return point.compute_share is not None and point.compute_share > HALF


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A run of the script at one value."""

    value: int
    failure: str = ""
    """Why it did not come to an end: out of memory, mostly."""
    step_s: float | None = None
    mfu: float | None = None
    compute_share: float | None = None
    """Of the goal's time, in compute-bound kernels; None where it takes none."""
    samples_per_s: float | None = None
    peak_reserved_bytes: int | None = None


@dataclass(slots=True)
class ThresholdSearch:
    """The search: `next_value` until it is None, each time with what it showed to `learn`."""

    values: Values
    goal: Goal
    points: dict[int, StepPoint] = field(default_factory=dict)

    def learn(self, point: StepPoint) -> None:
        self.points[point.value] = point

    @property
    def below(self) -> int | None:
        """The largest value at which it is not met, below all others."""
        end = self._end
        values = (value for value in self.points if end is None or value < end)
        return max(values, default=None)

    @property
    def _end(self) -> int | None:
        """The smallest value at which it is met, or the script fails."""
        ends = (
            value
            for value, point in self.points.items()
            if point.failure or self.goal.is_met(point)
        )
        return min(ends, default=None)

    @property
    def answer(self) -> int | None:
        """The smallest value at which it is met, once there is nothing more to try."""
        end = self._end
        return None if end is None or self.points[end].failure else end

    def next_value(self) -> int | None:
        """The value to try next; None where the answer is known."""
        low, high = self.below, self._end
        if low is None:
            return self.values.first if high is None else None
        if high is None:
            return self.values.nearest(2 * low) if low < self.values.last else None
        between = self.values.nearest((low + high) / 2)
        if between <= low:
            between = low + self.values.multiple
        return between if between < high else None

    @property
    def failed(self) -> StepPoint | None:
        """The smallest value that failed, where that ended the search."""
        end = self._end
        return None if end is None or not self.points[end].failure else self.points[end]


def point_of(value: int, ledger: Ledger, goal: Goal) -> StepPoint:
    """What a run's ledger says of the goal."""
    utilisation, rate = model_utilisation(ledger), throughput(ledger)
    bounds = seconds_by_bound(ledger, _key(ledger, goal.scope)).get(True, {})
    seconds = sum(bounds.values())
    return StepPoint(
        value,
        step_s=ledger.step_s,
        mfu=None if utilisation is None else utilisation.fraction,
        compute_share=bounds.get(Bound.COMPUTE, 0.0) / seconds if seconds else None,
        samples_per_s=None if rate is None else rate.samples_per_s,
        peak_reserved_bytes=reserved_bytes_of(ledger),
    )


def _key(ledger: Ledger, scope: str) -> Callable[[Entry], bool]:
    """Whether an operator is part of what the goal is about."""
    if scope == STEP:
        return lambda entry: True
    root = root_of(map(line_of, ledger.reported))

    def is_inside(entry: Entry) -> bool:
        place, _ = line_texts(line_of(entry), root)
        path = module_of(entry).module
        return place == scope or path == scope or path.startswith(f"{scope}.")

    return is_inside


def check_scope(ledger: Ledger, goal: Goal) -> str:
    """Why a goal means nothing in this run; "" where it does."""
    if goal.scope == STEP or any(map(_key(ledger, goal.scope), ledger.reported)):
        return ""
    return (
        f"--compute-bound {goal.scope}: the run has no such line or module. After `tally run`, "
        "`tally show run.tally --by line` and `--by module` list them."
    )
