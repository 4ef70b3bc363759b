"""Which values to try next, and which one is the largest that fits. No processes, no torch.

    search = Search(Values(1, 1 << 20), capacity_bytes=80 * 10**9)
    while search.bracket is None:
        for value in search.values_to_try(2):
            search.learn(Trial(value, fits=..., needed_bytes=...))
    search.bracket.largest

Memory is assumed to grow with the value: what fits, fits at any smaller value. How it grows is
guessed from what was seen, so that few values are tried; the answer is never a guess. It is a value
that was seen to fit, and the next one was seen not to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise

from torchtally.errors import UsageError

FIRST_VALUES = (4, 16)
"""Tried first, in multiples: small enough for any script, large enough for its tensors to tell."""
GROWTH = 16
"""How many times the largest value seen the next one may be."""
GUESSES = 3
"""Rounds that trust the guess alone; from then on each one also halves what is left."""
FAILURES = 6
"""Values at which the script itself fails, until the search is given up."""


@dataclass(frozen=True, slots=True)
class Values:
    """Multiples of `multiple` from `low` to `high`, both included. Raises UsageError for none."""

    low: int = 1
    high: int = 1 << 20
    multiple: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.last:
            each = f" that is a multiple of {self.multiple}" if self.multiple > 1 else ""
            raise UsageError(f"no value to try from {self.low} to {self.high}{each}.")

    @property
    def first(self) -> int:
        return -(-self.low // self.multiple) * self.multiple

    @property
    def last(self) -> int:
        return self.high // self.multiple * self.multiple

    def nearest(self, value: float) -> int:
        """The largest one not above `value`; the first where there is none."""
        below = int(min(value, self.last)) // self.multiple * self.multiple
        return max(below, self.first)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one run of the script."""

    value: int
    fits: bool | None
    """None: the script failed at this value, for a reason that is not memory."""
    needed_bytes: int = 0
    """Approximate capacity it needs, 0 if unknown; guesses interpolate it."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """The answer."""

    largest: int | None
    """None: not even the smallest value fits, or none at which the script works."""
    too_large: int | None
    """The next value, which does not fit. None: there is no larger one to try."""
    gave_up: bool = False
    """The script failed at too many values."""


class Search:
    """The search for one capacity."""

    def __init__(self, values: Values, capacity_bytes: int) -> None:
        self.values = values
        self.capacity_bytes = capacity_bytes
        self.seen: dict[int, Trial] = {}
        self.hints: Mapping[int, int] = {}
        """Needed bytes by value, of a chip like this one: good for guesses alone."""
        self.foresees: Callable[[int], bool] | None = None
        """A better guess of whether a value fits, from outside."""
        self.settled: Bracket | None = None
        """The answer by other means than this search."""
        self._rounds = 0

    def learn(self, trial: Trial) -> None:
        self.seen[trial.value] = trial

    # What is known.

    @property
    def smallest_too_large(self) -> int | None:
        return min(
            (trial.value for trial in self.seen.values() if trial.fits is False), default=None
        )

    @property
    def largest_fitting(self) -> int | None:
        """The largest value that fits, below everything that does not."""
        end = self.smallest_too_large
        fitting = (trial.value for trial in self.seen.values() if trial.fits)
        return max((value for value in fitting if end is None or value < end), default=None)

    @property
    def is_monotone(self) -> bool:
        """No value fits that is larger than one that does not."""
        end = self.smallest_too_large
        return end is None or not any(
            trial.fits and trial.value > end for trial in self.seen.values()
        )

    @property
    def failed(self) -> tuple[int, ...]:
        return tuple(sorted(trial.value for trial in self.seen.values() if trial.fits is None))

    @property
    def bracket(self) -> Bracket | None:
        """The answer, once there is one."""
        if self.settled is not None:
            return self.settled
        low, high = self.largest_fitting, self.smallest_too_large
        if next(self._open(), None) is None:
            return Bracket(low, high)
        if len(self.failed) >= FAILURES:
            return Bracket(low, high, gave_up=True)
        return None

    def _open(self) -> Iterator[int]:
        """Untried values above the largest that fits, below the smallest that does not."""
        low, high = self.largest_fitting, self.smallest_too_large
        step = self.values.multiple
        first = self.values.first if low is None else low + step
        last = self.values.last if high is None else high - step
        return (number for number in range(first, last + 1, step) if number not in self.seen)

    # What to try.

    @property
    def is_blind(self) -> bool:
        """There are too few results to guess from."""
        return len(self._points()) < 2

    def values_to_try(self, how_many: int = 2) -> tuple[int, ...]:
        """Values to try, the most telling one first; none when the answer is found.

        To be asked again when all of them were learnt.
        """
        if self.bracket is not None:
            return ()
        self._rounds += 1
        places: dict[int, None] = {}
        for target in self._targets():
            place = self._nearest_open(target, places)
            if place is not None:
                places[place] = None
            if len(places) == how_many:
                break
        return tuple(places)

    def _targets(self) -> Iterator[int]:
        """Values one would like to try, best first."""
        values, step = self.values, self.values.multiple
        low, high = self.largest_fitting, self.smallest_too_large
        if self.is_blind and high is None:
            if low is None and not self.seen:
                yield from (values.nearest(number * step) for number in FIRST_VALUES)
            else:
                yield (low or values.first) * 2
                yield (low or values.first) * 4
        first = values.first if low is None else low + step
        most = max([*self.seen, *self.hints, values.first]) * GROWTH
        last = min(values.last, most) if high is None else high - step
        middle = values.nearest((first + last) / 2 if high is not None else min(first * 2, last))
        guess = self._guess()
        if guess is None or self._rounds > GUESSES:
            yield middle
        if guess is not None:
            target = values.nearest(min(max(guess, first - step), last))
            yield max(target, first)
            yield target + step if target + step <= last else target - step
        for offset in count(1):
            yield first + offset * step
            if first + offset * step > last:
                return

    def _nearest_open(self, target: int, places: Mapping[int, None]) -> int | None:
        """The open value nearest to the target, rather above than below."""
        low, high = self.largest_fitting, self.smallest_too_large
        values, step = self.values, self.values.multiple
        for distance in range(FAILURES + len(places) + 2):
            for place in (target + distance * step, target - distance * step):
                if (
                    place not in self.seen
                    and place not in places
                    and values.first <= place <= values.last
                    and (low is None or place > low)
                    and (high is None or place < high)
                ):
                    return place
        return None

    def _points(self) -> Sequence[tuple[int, int]]:
        """(value, needed bytes), by value: of this search, with hints where there are too few."""
        own = {
            trial.value: trial.needed_bytes for trial in self.seen.values() if trial.needed_bytes
        }
        points = own if len(own) > 1 else {**self.hints, **own}
        return sorted(points.items())

    def _guess(self) -> float | None:
        """Guess at where the capacity is reached, by a straight line through the two nearest
        values.
        """
        points = self._points()
        if len(points) < 2:
            return None
        pairs = list(pairwise(points))
        around = [pair for pair in pairs if pair[0][1] <= self.capacity_bytes < pair[1][1]]
        (x, needed), (x2, needed2) = next(
            chain(around, [pairs[0] if self.capacity_bytes < points[0][1] else pairs[-1]])
        )
        if needed2 <= needed:
            return None
        guess = x + (self.capacity_bytes - needed) * (x2 - x) / (needed2 - needed)
        return guess if self.foresees is None else self._foreseen(guess, self.foresees)

    def _foreseen(self, guess: float, foresees: Callable[[int], bool]) -> float:
        """The largest value of which it is foreseen that it fits, looked for near a guess."""
        values, step = self.values, self.values.multiple
        low = self.largest_fitting or 0
        high = self.smallest_too_large or values.last + step
        reach = max(step, values.nearest(guess * 0.05))
        place = min(max(values.nearest(guess), low + step), high - step)
        if not low < place < high:
            return guess
        while low + step < high:
            if foresees(place):
                low, place = place, min(place + reach, high - step)
            else:
                high, place = place, max(place - reach, low + step)
            reach *= 2
            if high - low <= reach:
                place = values.nearest((low + high) / 2)
        return low
