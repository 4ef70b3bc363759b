"""The windows of each step's batch: a pure function of (seed, step).

    N  windows in the data      B  windows in a global batch, of all ranks together
    position = step * B + row   the position of a window in the sequence of all epochs

There is no state: resuming at a step computes that step, and any number of ranks divides the same B
windows. An epoch is a permutation of the N windows that is computed, never stored: a Feistel
network permutes [0, 2**bits), and results outside of [0, N) are permuted again until they fall
inside ("cycle walking", Black and Rogaway 2002). As 2**bits < 2 N, that takes fewer than two rounds
on average. A batch across the end of an epoch continues in the next one.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Int64, UInt64

from torchtally.errors import UsageError

ROUNDS = 4
"""Of two halves each. Two rounds suffice with ideal round functions (Luby and Rackoff 1988); these
are hashes, hence twice that."""
SMALL_BITS, SMALL_ROUNDS = 8, 16
"""Halves of few bits have few round functions, so it takes more rounds until all permutations are
equally likely."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
"""Constants of splitmix64 (Steele, Lea and Flood 2014; Stafford's variant 13)."""

Words = UInt64[np.ndarray, "..."]


class OrderName(StrEnum):
    SHUFFLED = "shuffled"
    """Every window once per epoch, in a new order each epoch."""
    SEQUENTIAL = "sequential"
    """Every window once per epoch, from first to last."""
    RANDOM = "random"
    """Random windows with replacement: nanoGPT's order, with a stride of 1."""


@dataclass(frozen=True, slots=True)
class Order:
    """The windows of each step. `seed` is this source's own (`seeds.seed_of`)."""

    name: OrderName
    windows: int
    batch: int
    """Windows in a global batch."""
    seed: int

    def __post_init__(self) -> None:
        if self.windows < 1 or self.batch < 1:
            raise UsageError(
                f"{self.batch} windows per step out of {self.windows}: both must be 1 or more."
            )

    def windows_of(self, step: int, steps: int = 1) -> Int64[np.ndarray, "steps batch"]:
        """The windows of `steps` steps starting at `step`, each in [0, windows)."""
        positions = np.arange(step * self.batch, (step + steps) * self.batch, dtype=np.uint64)
        windows = self.windows_at(positions).astype(np.int64)
        return windows.reshape(steps, self.batch)

    def windows_at(self, positions: Words) -> Words:
        """The windows at these positions of the sequence of all epochs."""
        count = np.uint64(self.windows)
        match self.name:
            case OrderName.SEQUENTIAL:
                return positions % count
            case OrderName.RANDOM:
                # The modulo favours small indices by one part in 2**64 / N: not measurable.
                return mix(positions * GOLDEN + mix(_word(self.seed))) % count
            case OrderName.SHUFFLED:
                keys = mix(positions // count * GOLDEN + mix(_word(self.seed)))
                return permute(positions % count, self.windows, keys)


MIXED_ROWS = 1 << 12
"""Of which each source has a fixed number, so weights are kept to one part in this many."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The windows of each step from several sources, by weights. Each source has an order of its
    own, so that none of its windows comes again before all of them were there.

    Rows are taken 4096 at a time; a fixed number of them is each source's, in a new order each
    time. So the step alone tells how many of its windows came before.
    """

    sources: tuple[Order, ...]
    weights: tuple[float, ...]
    batch: int
    seed: int

    @property
    def windows(self) -> int:
        return sum(source.windows for source in self.sources)

    def __post_init__(self) -> None:
        if min(self.rows()) < 1:
            raise UsageError(
                f"data.weights: {min(self.weights)} is less than one part in {MIXED_ROWS} of all."
            )

    def rows(self) -> tuple[int, ...]:
        """Rows of each source, in turn."""
        ends = np.round(np.cumsum(self.weights) / sum(self.weights) * MIXED_ROWS).astype(np.int64)
        return tuple(np.diff(ends, prepend=0).tolist())

    def windows_of(self, step: int, steps: int = 1) -> Int64[np.ndarray, "steps batch"]:
        """Windows as of `Order.windows_of`; they are numbered across the sources."""
        begin, end = step * self.batch, (step + steps) * self.batch
        turn = begin // MIXED_ROWS
        at = np.arange(turn * MIXED_ROWS, -(-end // MIXED_ROWS) * MIXED_ROWS, dtype=np.uint64)
        turns, places = at // np.uint64(MIXED_ROWS), at % np.uint64(MIXED_ROWS)
        places = permute(places, MIXED_ROWS, mix(turns * GOLDEN + mix(_word(self.seed))))
        owners = np.searchsorted(np.cumsum(self.rows()), places.astype(np.int64), side="right")
        windows = np.empty(len(at), np.int64)
        before = 0
        for number, (source, rows) in enumerate(zip(self.sources, self.rows(), strict=True)):
            own = owners == number
            positions = turn * rows + np.arange(own.sum())
            windows[own] = source.windows_at(positions.astype(np.uint64)).astype(np.int64) + before
            before += source.windows
        first = turn * MIXED_ROWS
        return windows[begin - first : end - first].reshape(steps, self.batch)


def rows_of_rank(batch: int, rank: int, ranks: int) -> slice:
    """The rows of a global batch that belong to a rank. Raises UsageError for unequal parts."""
    if not 0 <= rank < ranks or batch % ranks:
        raise UsageError(
            f"rank {rank} of {ranks}: a global batch of {batch} windows cannot be divided "
            "equally. Choose a batch that is a multiple of the number of ranks."
        )
    rows = batch // ranks
    return slice(rank * rows, (rank + 1) * rows)


def permute(places: Words, count: int, keys: Words) -> Words:
    """Each place in [0, count) under the permutation selected by its key."""
    bits = (count - 1).bit_length()
    permuted_places = feistel(places, bits, keys)
    outside = np.flatnonzero(permuted_places >= count)
    while outside.size:
        permuted_places[outside] = feistel(permuted_places[outside], bits, keys[outside])
        outside = outside[permuted_places[outside] >= count]
    return permuted_places


def feistel(places: Words, bits: int, keys: Words) -> Words:
    """A permutation of [0, 2**bits) for each key: each half is XORed with a hash of the other."""
    low_bits = np.uint64((bits + 1) // 2)
    low_mask = np.uint64((1 << (bits + 1) // 2) - 1)
    high_mask = np.uint64((1 << bits // 2) - 1)
    low, high = places & low_mask, places >> low_bits
    for _ in range(SMALL_ROUNDS if bits <= SMALL_BITS else ROUNDS):
        keys = mix(keys + GOLDEN)
        low = low ^ (mix(high + keys) & low_mask)
        high = high ^ (mix(low ^ keys) & high_mask)
    return high << low_bits | low


def mix(words: Words) -> Words:
    """splitmix64's finaliser: every bit of the result depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * MIX_1
    words = (words ^ (words >> np.uint64(27))) * MIX_2
    mixture: Words = words ^ (words >> np.uint64(31))
    return mixture


def _word(number: int) -> Words:
    return np.array([number % 2**64], np.uint64)
