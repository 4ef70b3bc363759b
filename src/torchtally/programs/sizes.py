"""Whole numbers of a run as expressions of its sizes, found by prime labels.

A recording gives every symbol (batch, sequence, width, heads, ...) a value with a prime factor that
no other symbol has: factoring a number then names the symbols in it, and recordings with other
primes confirm the factor in front. Numbers stay whole; nothing is fitted by least squares.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import inf, prod

from torchtally.trace.record import Record

Symbols = Mapping[str, int]
"""The value of each symbol."""
Powers = tuple[tuple[str, int], ...]
"""(symbol, power) of a product, by symbol; empty: one. Only of `RANKS` a power may be negative."""
RANKS = "ranks"
"""How many share the first dimension of each weight."""
SHARES: Mapping[str, str] = {each: f"{each}/{RANKS}" for each in ("vocabulary", "head_dim")}
"""Sizes that ranks need not divide, by the share of each: rounded up, as FSDP2 pads the last."""


class SizeTerm(Record, frozen=True):
    """A product of symbols, times a factor."""

    numerator: int
    denominator: int
    powers: Powers


Size = tuple[SizeTerm, ...]
"""A sum of terms; nearly always one."""


@dataclass(frozen=True, slots=True)
class Point:
    """The sizes of one recording."""

    values: Symbols
    primes: Symbols
    """The prime factor of each value that no other symbol has."""
    shared: frozenset[str] = frozenset()
    """Symbols whose values the ranks divide."""


def labelled(units: Symbols, primes: Symbols, shared: Collection[str] = ()) -> Point:
    """Sizes that are a unit (64 tokens, 8 columns) times a prime each; those that are `shared`,
    times the ranks.

    Raises ValueError unless every prime divides the value of its own symbol alone.
    """
    ranks = primes.get(RANKS, 1)
    values = {
        symbol: unit * primes[symbol] * (ranks if symbol in shared else 1)
        for symbol, unit in units.items()
    }
    for symbol, prime in primes.items():
        owners = {other for other, value in values.items() if value % prime == 0}
        expected = {symbol, *shared} if symbol == RANKS else {symbol}
        if owners != expected:
            raise ValueError(f"{prime} labels {symbol}, and divides {', '.join(sorted(owners))}")
    return Point(values, dict(primes), frozenset(shared))


def with_shares(symbols: Symbols) -> dict[str, int]:
    """The sizes, with the share of each rank."""
    ranks = symbols.get(RANKS, 1)
    shares = {
        share: -(-symbols[each] // ranks) for each, share in SHARES.items() if each in symbols
    }
    return {**symbols, **(shares if ranks > 1 else {})}


def value(size: Size, symbols: Symbols) -> int:
    """The number that an expression has at these sizes. Raises ValueError for a broken one."""
    numerator, denominator = 0, 1
    for term in size:
        whole, parts = term.numerator, term.denominator
        for symbol, power in term.powers:
            if power > 0:
                whole *= symbols[symbol] ** power
            else:
                parts *= symbols[symbol] ** -power
        numerator, denominator = numerator * parts + whole * denominator, denominator * parts
    number, rest = divmod(numerator, denominator)
    if rest:
        raise ValueError(f"{text(size)} is {Fraction(numerator, denominator)} at {dict(symbols)}")
    return number


def product(powers: Powers, symbols: Symbols) -> Fraction:
    whole = prod(symbols[symbol] ** power for symbol, power in powers if power > 0)
    return Fraction(whole, prod(symbols[symbol] ** -power for symbol, power in powers if power < 0))


def size_of(numbers: Sequence[int], points: Sequence[Point]) -> Size | None:
    """The expression that is each of the numbers at its point; None where there is none.

    Tried in order: a constant; a product of symbols; a product times a sum of a product and a
    constant, as in b (s + 1) or (heads + 2 kv heads) x head dim; a product times a sum of two and a
    constant, as in the pairs that a window w lets attend: w (s - w / 2 + 1 / 2). Of several sums
    that fit the simplest is meant. Each as it is, then of each rank and of all.
    """
    if len(set(numbers)) == 1:
        return (term(Fraction(numbers[0]), ()),) if numbers[0] else ()
    if 0 in numbers:
        return None
    factored = [powers_of(number, point) for number, point in zip(numbers, points, strict=True)]
    labels = shared(factored)

    def rests(common: Powers) -> list[Fraction]:
        pairs = zip(numbers, points, strict=True)
        return [number / product(common, point.values) for number, point in pairs]

    powers = (0, -1, 1) if RANKS in points[0].primes else (0,)
    shares = [joined(labels, ((RANKS, power),)) for power in powers]
    for common in shares:
        if len(factors := set(rests(common))) == 1:
            return (term(factors.pop(), common),)
    sums = [(sum_of(rests(common), points), common) for common in shares]
    terms, common = min(sums, key=lambda found: complexity(found[0]) if found[0] else inf)
    return tuple(term(factor, joined(powers, common)) for factor, powers in terms) or None


def sum_of(rests: Sequence[Fraction], points: Sequence[Point]) -> "Sum":
    """The simplest sum of products that is each number; empty where there is none."""
    products = {
        powers: [product(powers, point.values) for point in points]
        for powers in candidates(points[0].values)
    }
    sums = lines(rests, products)
    if min(map(complexity, sums), default=LEAST_OF_PLANES + 1) > LEAST_OF_PLANES:
        sums += planes(rests, products)
    simplest = min(sums, key=complexity, default=())
    return tuple((factor, powers) for factor, powers in simplest if factor)


Sum = tuple[tuple[Fraction, Powers], ...]
"""Factors and products, to be added."""


def complexity(terms: Sum) -> int:
    """How little one expects these factors: s + 1 comes before 5/3 h - 383."""
    return sum(abs(factor.numerator) + factor.denominator for factor, _ in terms)


LEAST_OF_PLANES = 5
"""The complexity of a difference, as positions - s."""


def lines(rests: Sequence[Fraction], products: Mapping[Powers, Sequence[Fraction]]) -> list[Sum]:
    """The sums of a product and a constant that are these numbers."""
    found = ((powers, line(rests, numbers)) for powers, numbers in products.items())
    return [((fit[0], powers), (fit[1], ())) for powers, fit in found if fit is not None]


def planes(rests: Sequence[Fraction], products: Mapping[Powers, Sequence[Fraction]]) -> list[Sum]:
    """The sums of two products and a constant that are these numbers, by small factors alone:
    through three points there is always a plane.
    """
    found: list[Sum] = []
    for (one, xs), (other, ys) in combinations(products.items(), 2):
        plane = plane_of(rests, xs, ys)
        if plane is not None:
            found.append(((plane[0], one), (plane[1], other), (plane[2], ())))
    return found


MOST_OF_PLANE = 16
"""The largest numerator and denominator in a sum of two products."""


def plane_of(
    rests: Sequence[Fraction], xs: Sequence[Fraction], ys: Sequence[Fraction]
) -> tuple[Fraction, Fraction, Fraction] | None:
    """(factor of x, factor of y, constant) of the plane through the points, by Cramer's rule."""
    if len(rests) < 3:
        return None
    (x1, x2), (y1, y2) = ((each[1] - each[0], each[2] - each[0]) for each in (xs, ys))
    r1, r2 = rests[1] - rests[0], rests[2] - rests[0]
    determinant = x1 * y2 - x2 * y1
    if not determinant:
        return None
    of_x, of_y = (r1 * y2 - r2 * y1) / determinant, (x1 * r2 - x2 * r1) / determinant
    plane = of_x, of_y, rests[0] - of_x * xs[0] - of_y * ys[0]
    sizes = (size for factor in plane for size in (abs(factor.numerator), factor.denominator))
    return None if max(sizes) > MOST_OF_PLANE else plane


def term(factor: Fraction, powers: Powers) -> SizeTerm:
    return SizeTerm(factor.numerator, factor.denominator, powers)


def powers_of(number: int, point: Point) -> Mapping[str, int]:
    """How often each symbol's prime divides a number."""
    powers = {}
    for symbol, prime in point.primes.items():
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        if power and symbol != RANKS:  # which also divides sizes that they share
            powers[symbol] = power
    return powers


def shared(factored: Sequence[Mapping[str, int]]) -> Powers:
    """The product that divides each of the factored numbers."""
    first = factored[0]
    least = {symbol: min(powers.get(symbol, 0) for powers in factored) for symbol in first}
    return tuple(sorted((symbol, power) for symbol, power in least.items() if power))


def added(size: Size, other: Size) -> Size:
    """The sum of two expressions."""
    factors: dict[Powers, Fraction] = {}
    for each in (*size, *other):
        factor = Fraction(each.numerator, each.denominator)
        factors[each.powers] = factors.get(each.powers, Fraction(0)) + factor
    return tuple(term(factor, powers) for powers, factor in factors.items() if factor)


def times(size: Size, factor: int, powers: Powers = ()) -> Size:
    """A multiple of an expression, and of a product."""
    return tuple(
        term(factor * Fraction(each.numerator, each.denominator), joined(each.powers, powers))
        for each in size
    )


def joined(powers: Powers, others: Powers) -> Powers:
    total = dict(powers)
    for symbol, power in others:
        total[symbol] = total.get(symbol, 0) + power
    return tuple(sorted((symbol, power) for symbol, power in total.items() if power))


def candidates(symbols: Symbols) -> list[Powers]:
    """Products of one symbol and of two; of the ranks with shares alone."""
    ones: list[Powers] = [((symbol, 1),) for symbol in symbols if symbol != RANKS]
    padded = [joined(((share, 1),), ((RANKS, 1),)) for share in SHARES.values() if share in symbols]
    return (
        ones
        + padded
        + [joined(one, other) for one, other in combinations_with_replacement(ones, 2)]
    )


MOST_DENOMINATOR = 64
"""Of a factor: sizes are halved, or counted in tiles."""


def line(
    rests: Sequence[Fraction], products: Sequence[Fraction]
) -> tuple[Fraction, Fraction] | None:
    """(slope, constant) of the line through the points; None where they are on no line."""
    run = products[1] - products[0]
    if not run or len(rests) < 3:  # two points are on a line always
        return None
    slope = (rests[1] - rests[0]) / run
    constant = rests[0] - slope * products[0]
    if max(slope.denominator, constant.denominator) > MOST_DENOMINATOR:
        return None  # through small numbers some line goes by chance
    if all(slope * each + constant == rest for each, rest in zip(products, rests, strict=True)):
        return slope, constant
    return None


def text(size: Size) -> str:
    """An expression as a person writes it: "2*b*s^2 + b"."""
    return " + ".join(term_text(each) for each in size) or "0"


def term_text(each: SizeTerm) -> str:
    words = [symbol if power == 1 else f"{symbol}^{power}" for symbol, power in each.powers]
    factor = Fraction(each.numerator, each.denominator)
    return "*".join(words if factor == 1 and words else [str(factor), *words])
