"""The sizes at which a program is recorded, chosen by those that are asked for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise
from math import gcd, isqrt
from types import MappingProxyType

from torchtally.programs.sizes import RANKS, Point, Symbols, labelled, with_shares

HEAD_DIM, POSITIONS, SEQUENCE, WINDOW = "head_dim", "positions", "sequence", "window"
UNITS: Mapping[str, int] = {
    "sequence": 64, "width": 8, "ffn": 8, "expert_ffn": 8, HEAD_DIM: 8, "vocabulary": 8,
    POSITIONS: 64,
}  # fmt: skip
"""How far the powers of two of a size matter: tensor cores and attention take tiles of them, and
operators pad what is none. A size that is not among them is any number."""
HEAD_DIMS = (0, 128, 256, 1 << 20)
"""Between two of these attention takes the same kernel (`virtual`)."""
RECORDINGS = 3
RANK_COUNTS = (3, 5, 7)
"""Of GPUs that share weights, in each recording."""
SHARDED = frozenset(("positions", "width", "embedding", "kv_heads", "ffn", "experts", "expert_ffn"))
"""Sizes of the first dimensions of weights, which ranks divide; others are in `sizes.SHARES`."""
LEAST_PRIME, LEAST_POSITIONS_PRIME, LEAST_LARGE_PRIME = 17, 101, 211
"""Labels are primes that no model has as a factor of its own making."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which recordings make a program for the sizes that are asked for."""

    units: Symbols
    """Of each symbol, what its values are multiples of."""
    fixed: Symbols
    """Sizes of one, which other operators serve, and those that are kept: all recordings have
    them.
    """
    points: tuple[Point, ...]
    check: Point
    """Of the recording that takes no part: the sizes asked for, so that a way that a class takes at
    these alone (a window, longer positions) is found."""


def recordings_for(
    asked: Symbols,
    least: Symbols = MappingProxyType({}),
    kept: Collection[str] = (),
    divided: frozenset[str] = SHARDED,
) -> Plan:
    """Three points whose sizes have the powers of two of those asked for, and prime labels.

    `least`: what a symbol must be above in every recording, as a vocabulary above its tokens' ids.
    `kept`: symbols that have the size asked for in every recording. A window that a sequence just
    fills is as long in every one: classes ask whether it is shorter. `divided`: sizes that ranks
    divide, where there are several.
    """
    fixed = {symbol: size for symbol, size in asked.items() if size == 1 or symbol in kept}
    filled = {WINDOW} if asked.get(WINDOW, 0) == asked.get(SEQUENCE) else set()
    units = {
        symbol: gcd(size, UNITS.get(symbol, 1))
        for symbol, size in asked.items()
        if symbol not in fixed.keys() | filled
    }
    chosen = head_dim_primes(asked[HEAD_DIM], units[HEAD_DIM]) if HEAD_DIM in units else ()
    others = [symbol for symbol in units if symbol not in (HEAD_DIM, POSITIONS, RANKS)]
    shared = divided & units.keys() if RANKS in units else frozenset()
    small = [prime for prime in primes_from(LEAST_PRIME, MOST_SYMBOLS) if prime not in chosen]
    tail = primes_from(LEAST_POSITIONS_PRIME, RECORDINGS)
    points = []
    for number in range(RECORDINGS):
        labels = {symbol: small[place + number * STRIDE] for place, symbol in enumerate(others)}
        if POSITIONS in units:
            labels[POSITIONS] = tail[number]
        for symbol in least.keys() & units.keys():
            if units[symbol] * labels[symbol] <= least[symbol]:
                first = max(LEAST_LARGE_PRIME, least[symbol] // units[symbol] + 1)
                labels[symbol] = primes_from(first, RECORDINGS)[number]
        if chosen:
            labels[HEAD_DIM] = chosen[number]
        if RANKS in units:
            labels[RANKS] = RANK_COUNTS[number]
        point = labelled(units, labels, shared)
        values = dict(point.values)
        values.update((symbol, values[SEQUENCE]) for symbol in filled)
        points.append(replace(point, values=with_shares(values)))
    check = Point({symbol: asked[symbol] for symbol in units.keys() | filled}, {})
    return Plan(units, fixed, tuple(points), check)


MOST_SYMBOLS = 18
"""Their labels are below those of positions, which a sequence does not exceed."""
STRIDE = 2
"""By how many places labels move from a recording to the next."""


def head_dim_primes(asked: int, unit: int) -> tuple[int, ...]:
    """Labels of head dims for which attention takes the kernel of the one asked for."""
    least, most = next(
        (least, most) for least, most in pairwise(HEAD_DIMS) if least < asked <= most
    )
    fitting = [prime for prime in primes_from(5, 200) if least < prime * unit <= most]
    return tuple(fitting[-RECORDINGS:])


def primes_from(least: int, number: int) -> list[int]:
    """So many primes from this number on."""
    return list(islice((each for each in count(least) if is_prime(each)), number))


def is_prime(number: int) -> bool:
    return number > 1 and all(number % each for each in range(2, isqrt(number) + 1))
