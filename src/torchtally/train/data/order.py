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
        windows = self._windows_at(positions).astype(np.int64)
        return windows.reshape(steps, self.batch)

    def _windows_at(self, positions: Words) -> Words:
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
