"""The values to try: parsing of grids and random draws, and the points they span.

    optimizer.lr=0.01,0.1            a grid: each value; with --random one of them
    optimizer.lr=log:1e-5..1e-1      log-uniform, ends included
    model.dropout=0..0.3             uniform

Drawn numbers are rounded to four digits, so that tables show the exact values. Draw n of a key
depends only on seed, key and n: more draws or other keys do not change it.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torchtally.errors import UsageError
from torchtally.train.keys import KeyValues, hint_of, is_number, is_whole, read_value

LOG = "log:"
TO = ".."
DIGITS = 4
MOST_POINTS = 100_000
VALUE = re.compile(r"""\s*(\[[^]]*]|"[^"]*"|'[^']*'|[^,]*?)\s*,""")


@dataclass(frozen=True, slots=True)
class Choice:
    """A list of values: each in a grid, one of them in a draw."""

    key: str
    values: tuple[Any, ...]

    def draw(self, share: float) -> Any:
        return self.values[int(share * len(self.values))]


@dataclass(frozen=True, slots=True)
class Interval:
    """A number from low to high, inclusive."""

    key: str
    low: float
    high: float
    is_logarithmic: bool
    is_whole: bool

    def draw(self, share: float) -> float | int:
        """The value at this quantile in [0, 1)."""
        low, high = self.low, self.high + self.is_whole
        if self.is_logarithmic:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if self.is_whole:
            return min(max(math.floor(value), int(self.low)), int(self.high))
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


def grid(text: str) -> Choice:
    """Parse KEY=VALUE,VALUE. Raises UsageError naming key and value."""
    key, rest = _key(text, "--grid optimizer.lr=1e-4,3e-4")
    return Choice(key, tuple(read_value(key, part) for part in split(rest, key)))


def fixed_choice(text: str) -> Choice:
    """Parse KEY=VALUE; commas are part of the value."""
    key, rest = _key(text, "--set steps=100")
    return Choice(key, (read_value(key, rest),))


def random_choice(text: str) -> Choice | Interval:
    """Parse KEY=A..B, KEY=log:A..B or KEY=VALUE,VALUE. Raises UsageError naming key and value."""
    key, rest = _key(text, "--random optimizer.lr=log:1e-5..1e-1")
    if rest.startswith(LOG) or (TO in rest and is_number(hint_of(key))):
        return _interval(key, rest)
    return Choice(key, tuple(read_value(key, part) for part in split(rest, key)))


def _key(text: str, example: str) -> tuple[str, str]:
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not rest.strip():
        raise UsageError(f"{text}: has no values. Write it as {example}.")
    hint_of(key)
    if key == "log.folder":
        raise UsageError(f"{key}: set by the sweep: each run has its own folder below --out.")
    return key, rest.strip()


def _interval(key: str, text: str) -> Interval:
    is_logarithmic = text.startswith(LOG)
    ends = text.removeprefix(LOG).split(TO)
    if len(ends) != 2 or not is_number(hint_of(key)):
        raise UsageError(f"{key}: {text} is not an interval of numbers. Write it as 1e-5{TO}1e-1.")
    low, high = (read_value(key, ending.strip()) for ending in ends)
    if low is None or high is None or not low < high or not math.isfinite(high - low):
        raise UsageError(f"{key}: {text}: the first end must be below the second.")
    if is_logarithmic and low <= 0:
        raise UsageError(f"{key}: {text}: a logarithm needs numbers above 0.")
    return Interval(key, low, high, is_logarithmic, is_whole(hint_of(key)))


def split(text: str, key: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts = VALUE.findall(f"{text},")
    if "" in parts:
        raise UsageError(f"{key}: {text}: a value is empty.")
    return parts


def points(
    grids: Sequence[Choice], randoms: Sequence[Choice | Interval], draws: int, seed: int
) -> tuple[KeyValues, ...]:
    """Every draw at every point of the grid, without duplicates; ordered by draw, then grid.

    Raises UsageError for a key given twice, and for too many points.
    """
    keys = [choice.key for choice in (*grids, *randoms)]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"{twice}: is given twice. Give all of its values at once.")
    count = math.prod(len(choice.values) for choice in grids) * (draws if randoms else 1)
    if count > MOST_POINTS:
        raise UsageError(f"expected at most {MOST_POINTS} runs, got {count}.")
    values_of_points = (
        (*at, *draw)
        for draw in _draws(randoms, draws, seed)
        for at in product(*([(choice.key, value) for value in choice.values] for choice in grids))
    )
    return tuple({repr(values): values for values in values_of_points}.values())


def _draws(randoms: Sequence[Choice | Interval], draws: int, seed: int) -> Iterator[KeyValues]:
    if not randoms:
        yield ()
        return
    for n in range(draws):
        yield tuple((choice.key, choice.draw(_share(seed, choice.key, n))) for choice in randoms)


def _share(seed: int, key: str, n: int) -> float:
    # Python seeds from the SHA-512 of a string, and guarantees that `random()` stays the same
    # (docs.python.org, random, "Notes on Reproducibility").
    return random.Random(f"{seed} {key} {n}").random()
