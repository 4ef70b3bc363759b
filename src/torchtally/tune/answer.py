"""What a search found: its front, what failed, and how each is run."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchtally.tune.knobs import Knob, KnobKind, Settings, settings_text
from torchtally.tune.points import TuneCost, TunePoint, cheapest, cost_of, front

HALF = 0.5


@dataclass(frozen=True, slots=True)
class ComputeBound:
    """The value of a knob from which a step is compute-bound, beside the fastest other settings."""

    gpus: str
    setting: str
    """As it is typed."""
    beside: str


@dataclass(frozen=True, slots=True)
class TuneAnswer:
    """The points of a search, and what a training is that they are compared by."""

    script: tuple[str, ...]
    """As it is run: "train.py", "--lr=1"."""
    knobs: tuple[Knob, ...]
    points: tuple[TunePoint, ...]
    amount: int
    """Tokens (samples, steps) of the training."""
    length_in: str
    deadline_s: float | None
    pruned: int
    """Settings on GPUs that were not run, by bounds."""
    is_cut: bool
    """The limit of runs ended it."""
    was_interrupted: bool
    patches: Mapping[Settings, str] = field(default_factory=dict)
    """Unified diffs of the front's settings that change sources."""

    @property
    def front(self) -> list[TunePoint]:
        """Points that were run, the fastest first."""
        return front([point for point in self.points if point.was_run], self.amount)

    @property
    def cheapest(self) -> TunePoint | None:
        """The point of least cost that meets the deadline."""
        return cheapest(self.front, self.amount, self.deadline_s)

    @property
    def failed(self) -> list[TunePoint]:
        return [point for point in self.points if point.failure]

    def cost(self, point: TunePoint) -> TuneCost:
        """The training by a point with figures."""
        cost = cost_of(point, self.amount)
        assert cost is not None
        return cost

    def text(self, point: TunePoint) -> str:
        """Its settings as they are typed."""
        return settings_text(self.knobs, point.settings)

    def command(self, point: TunePoint, size: int, per_node: int) -> str:
        """What to type on its GPUs, with the patch applied."""
        arguments, variables = self.script[1:], []
        for knob, value in zip(self.knobs, point.settings, strict=True):
            if knob.kind is KnobKind.ARGUMENT:
                arguments = knob.argument.among(arguments, value)
            elif knob.kind is KnobKind.VARIABLE and (text := knob.text(value)):
                variables.append(text)
        started = self.script[0]
        launcher = "python"
        if size > 1:
            nodes = f"--nnodes={size // per_node} " if size > per_node else ""
            launcher = f"torchrun {nodes}--nproc-per-node={per_node}"
        words = shlex.join((started, *arguments))
        return " ".join([*variables, launcher, words] if started.endswith(".py") else
                        [*variables, words])  # fmt: skip

    def compute_bounds(self) -> Iterator[ComputeBound]:
        """The values of the first knob of numbers from which the step is compute-bound, by GPUs,
        with the fastest of the other settings.
        """
        place = next((at for at, knob in enumerate(self.knobs) if _counts(knob)), None)
        if place is None:
            return
        for gpus in dict.fromkeys(point.gpus for point in self.points):
            here = [point for point in self.points if point.gpus == gpus and not point.failure]
            if not here:
                continue
            fastest = min(here, key=lambda point: self.cost(point).seconds).settings
            alike = [
                each for each in here if _without(each.settings, place) == _without(fastest, place)
            ]
            smallest = None
            for each in sorted(alike, key=lambda point: -int(point.settings[place])):
                if each.compute_share is None or each.compute_share <= HALF:
                    break
                smallest = each
            if smallest is not None:
                knob, value = self.knobs[place], smallest.settings[place]
                rest = tuple(each for each in self.knobs if each is not knob)
                yield ComputeBound(
                    gpus, knob.text(value), settings_text(rest, _without(fastest, place))
                )


def _counts(knob: Knob) -> bool:
    return knob.is_open or (knob.is_number and len(knob.values) > 1)


def _without(settings: Settings, place: int) -> Settings:
    return settings[:place] + settings[place + 1 :]
