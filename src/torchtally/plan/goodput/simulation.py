"""Trainings played event by event, with failures drawn at random: what the closed form expects."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Segments:
    """A training as failures see it: equal segments of work, each with a save at its end."""

    count: int
    work_s: float
    save_s: float
    restart_s: float
    mtbf_s: float
    written_s: float = 0.0
    """Seconds after a save's end until it can be loaded: a failure within them loses it, too."""


@dataclass(frozen=True, slots=True)
class SimulatedLoss:
    """Seconds of one training, by what they went to."""

    repeated_s: float
    restarts_s: float
    failures: int


def play(segments: Segments, random: Random) -> SimulatedLoss:
    """One training.

    Segments between two failures are passed over at once: an exponential time has no memory.
    """
    each_s = segments.work_s + segments.save_s
    done = failed = 0
    repeated_s = restarts_s = 0.0
    while done < segments.count:
        run_s = random.expovariate(1 / segments.mtbf_s)
        passed = min(int(run_s / each_s), segments.count - done)
        done += passed
        if done == segments.count:
            break
        failed += 1
        within_s = run_s - passed * each_s
        repeated_s += within_s
        if passed and within_s < segments.written_s:
            done, repeated_s = done - 1, repeated_s + each_s
        while (restart_s := random.expovariate(1 / segments.mtbf_s)) < segments.restart_s:
            failed += 1
            restarts_s += restart_s
        restarts_s += segments.restart_s
    return SimulatedLoss(repeated_s, restarts_s, failed)


def lost_s(segments: Segments, trainings: int, seed: int = 0) -> list[float]:
    """Seconds lost by each of so many trainings, least first."""
    random = Random(seed)
    played = (play(segments, random) for _ in range(trainings))
    return sorted(one.repeated_s + one.restarts_s for one in played)


def percentile(ordered: list[float], share: float) -> float:
    """The value below which this share of them lies."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
