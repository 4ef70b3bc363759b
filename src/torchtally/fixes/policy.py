"""Which outputs to keep for a backward pass, and which to recompute: an integer problem.

Every number is of a trace in which all of them are recomputed. Keeping one saves seconds, and holds
bytes over ranges of the trace's clock: at every tick the live bytes are a linear function of the
choices, so that the solver's peak is that of the timeline, transients of the backward pass with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ROWS_A_ROUND = 64
"""Ticks that one round of the solver adds: the fullest of so many ranges over the limit."""


@dataclass(frozen=True, slots=True)
class BytesBetween:
    """Bytes that a choice adds, or with a minus frees, at ticks start <= t < end."""

    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Keeping:
    """An operator's outputs that may be kept, by what that brings."""

    saved_s: float
    """Seconds of the operator, which does not run again."""
    effects: tuple[BytesBetween, ...]
    implies: tuple[int, ...] = ()
    """Numbers of those that must be kept if this one is."""


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """What may be kept, and the live bytes of a run that keeps none of it."""

    keepings: tuple[Keeping, ...]
    ticks: Sequence[int]
    live_bytes: Sequence[int]
    """From each tick on, with nothing kept. `ticks` has every start and end of an effect."""
    recomputed_s: float = 0.0
    """Seconds of everything that is recomputed with nothing kept."""


@dataclass(frozen=True, slots=True)
class SolvedPolicy:
    """The choice that recomputes for the fewest seconds within a limit."""

    kept: frozenset[int]
    """Numbers of the keepings."""
    saved_s: float
    peak_bytes: int
    bound_s: float = field(compare=False)
    """More seconds than these no choice saves."""


def solve(
    problem: PolicyProblem, limit_bytes: int, *, gap: float = 0.0, seconds: float = 60.0
) -> SolvedPolicy | None:
    """The keepings that save most seconds with at most `limit_bytes` live at every tick; None where
    no choice stays below them, or none was found in time.

    Rows of ticks are added as they are violated, so that the last answer holds at all ticks.

    Args:
        problem: of which all ticks count.
        limit_bytes: of live bytes, at most.
        gap: of the saved seconds: what the answer may be off the optimum.
        seconds: for each round of the solver.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    count = len(problem.keepings)
    course = _Course(problem)
    if not count:
        peak = int(course.base.max(initial=0))
        return SolvedPolicy(frozenset(), 0.0, peak, 0.0) if peak <= limit_bytes else None
    saved = np.array([keeping.saved_s for keeping in problem.keepings])
    scale = saved.max() or 1.0
    pairs = [(i, j) for i, keeping in enumerate(problem.keepings) for j in keeping.implies]
    rows = np.repeat(np.arange(len(pairs)), 2)
    columns = np.array(pairs, dtype=int).reshape(-1)
    implied = coo_array((np.tile([1.0, -1.0], len(pairs)), (rows, columns)), (len(pairs), count))
    constraints = [LinearConstraint(implied, -np.inf, 0)] if pairs else []
    places = course.fullest(np.zeros(count, dtype=np.int64), limit_bytes)
    places |= course.fullest(np.ones(count, dtype=np.int64), limit_bytes)
    while True:
        held, room = course.rows(sorted(places), limit_bytes)
        within = [LinearConstraint(held, -np.inf, room)] if places else []
        answer = milp(
            -saved / scale, integrality=np.ones(count), bounds=Bounds(0, 1),
            constraints=[*constraints, *within],
            options={"mip_rel_gap": gap, "time_limit": seconds},
        )  # fmt: skip
        if answer.x is None:
            return None
        choice = np.rint(answer.x).astype(np.int64)
        violated = course.fullest(choice, limit_bytes)
        if violated and violated <= places:
            # A row was met to the solver's tolerance alone, and bytes are whole: not this choice.
            other = LinearConstraint(1.0 - 2.0 * choice, 1.0 - choice.sum(), np.inf)
            constraints.append(other)
        elif not violated:
            kept = frozenset(np.flatnonzero(choice).tolist())
            peak = int(course.live(choice).max())
            return SolvedPolicy(
                kept, float(saved @ choice), peak, float(-answer.mip_dual_bound * scale)
            )
        places |= violated


class _Course:
    """Live bytes at every tick, of any choice."""

    def __init__(self, problem: PolicyProblem) -> None:
        ticks = np.array(problem.ticks, dtype=np.int64)
        self.base: NDArray[np.int64] = np.array(problem.live_bytes, dtype=np.int64)
        effects = [
            (number, effect.start, effect.end, effect.bytes)
            for number, keeping in enumerate(problem.keepings)
            for effect in keeping.effects
            if effect.start < effect.end
        ]
        table = np.array(effects, dtype=np.int64).reshape(-1, 4)
        self.number, self.bytes = table[:, 0], table[:, 3]
        self.first = np.searchsorted(ticks, table[:, 1])
        self.end = np.searchsorted(ticks, table[:, 2])
        self.count = len(problem.keepings)

    def live(self, choice: NDArray[np.int64]) -> NDArray[np.int64]:
        """Live bytes from each tick on."""
        change = np.zeros(len(self.base) + 1, dtype=np.int64)
        chosen = self.bytes * choice[self.number]
        np.add.at(change, self.first, chosen)
        np.add.at(change, self.end, -chosen)
        live: NDArray[np.int64] = self.base + np.cumsum(change)[:-1]
        return live

    def fullest(self, choice: NDArray[np.int64], limit_bytes: int) -> set[int]:
        """Places of ticks over the limit: the fullest of each range of them."""
        over = self.live(choice) - limit_bytes
        places = np.flatnonzero(over > 0)
        if not len(places):
            return set()
        ranges = np.array_split(places, min(len(places), ROWS_A_ROUND))
        return {int(part[np.argmax(over[part])]) for part in ranges}

    def rows(
        self, places: list[int], limit_bytes: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What each choice holds at these places, and the room it has there, in MiB."""
        held = np.zeros((len(places), self.count))
        for row, place in enumerate(places):
            here = (self.first <= place) & (place < self.end)
            np.add.at(held[row], self.number[here], self.bytes[here])
        room = limit_bytes - self.base[places].astype(np.float64)
        return held / 2**20, room / 2**20
