"""What a run of some settings showed, and which of them are worth a choice."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from torchtally.chips.chip import SECONDS_PER_HOUR
from torchtally.tune.knobs import Settings

TOKENS, SAMPLES, STEPS = "tokens", "samples", "steps"
"""What a step works on; steps alone where nothing tells how many samples it has."""
LEAST_GAIN = 0.01
"""By which a point must be better in something to stand beside those that are better elsewhere."""


@dataclass(frozen=True, slots=True)
class TunePoint:
    """Settings on GPUs: what a run of them showed. None: unknown."""

    gpus: str
    """As they are named: "8xH100-SXM"."""
    settings: Settings
    ran_on: str
    """The GPUs that were simulated. Others of the same kind: the figures are this run's, timed for
    the chip of `gpus`."""
    failure: str = ""
    """Why there are no figures."""
    step_s: float | None = None
    batch: int | None = None
    """What all ranks work on in a step."""
    length_in: str = TOKENS
    peak_reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    mfu: float | None = None
    compute_share: float | None = None
    """Of the step's time, in compute-bound kernels."""
    gpus_usd_per_hour: float | None = None
    """Of all GPUs."""
    watts: float | None = None
    """Mean of all GPUs."""
    floor_s: dict[str, float] = field(default_factory=dict)
    """Seconds that a step takes at least, by GPUs."""

    @property
    def was_run(self) -> bool:
        return self.ran_on == self.gpus

    @property
    def key(self) -> tuple[str, Settings]:
        return self.gpus, self.settings


@dataclass(frozen=True, slots=True)
class TuneCost:
    """What a training takes by a point. None: unknown."""

    seconds: float
    peak_reserved_bytes: int
    cost_usd: float | None
    energy_joules: float | None

    @property
    def amounts(self) -> tuple[float | None, ...]:
        return self.seconds, self.peak_reserved_bytes, self.cost_usd, self.energy_joules

    def is_no_worse(self, other: "TuneCost", tolerance: float = 0.0) -> bool:
        """Whether no amount is more than a little above the other's. What is unknown of one alone
        can be compared with nothing.
        """
        return all(
            mine is theirs is None
            or (mine is not None and theirs is not None and mine <= theirs * (1 + tolerance))
            for mine, theirs in zip(self.amounts, other.amounts, strict=True)
        )


def cost_of(point: TunePoint, amount: int) -> TuneCost | None:
    """A training on so many tokens (or samples, or steps), in whole steps; None of a point without
    figures.
    """
    if point.step_s is None or point.batch is None:
        return None
    seconds = ceil(amount / point.batch) * point.step_s
    rate = point.gpus_usd_per_hour
    return TuneCost(
        seconds=seconds,
        peak_reserved_bytes=point.peak_reserved_bytes,
        cost_usd=None if rate is None else rate * seconds / SECONDS_PER_HOUR,
        energy_joules=None if point.watts is None else point.watts * seconds,
    )


def front(points: Sequence[TunePoint], amount: int) -> list[TunePoint]:
    """The fastest first; each other one by 1 % better in something than any before it."""
    costs = [(point, cost) for point in points if (cost := cost_of(point, amount)) is not None]
    costs.sort(key=lambda pair: [inf if each is None else each for each in pair[1].amounts])
    kept: list[tuple[TunePoint, TuneCost]] = []
    for point, cost in costs:
        if not any(other.is_no_worse(cost, LEAST_GAIN) for _, other in kept):
            kept.append((point, cost))
    return [point for point, _ in kept]


def cheapest(
    points: Sequence[TunePoint], amount: int, deadline_s: float | None
) -> TunePoint | None:
    """The one of the least dollars that meets the deadline; the faster of two. None of none, and
    where no price is known.
    """
    priced = [
        (cost.cost_usd, cost.seconds, place)
        for place, point in enumerate(points)
        if (cost := cost_of(point, amount)) is not None
        and cost.cost_usd is not None
        and cost.seconds <= (inf if deadline_s is None else deadline_s)
    ]
    return points[min(priced)[2]] if priced else None
