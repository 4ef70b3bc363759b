"""A published figure beside the closed form that must give it, and how far apart they may be."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

TIGHT = 4
"""A tolerance of more than so many times the difference is wider than needed."""
STATED = 0.0005
"""How closely the difference of what is not reproduced is stated, as a fraction of the figure."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A unit as authors print it, and how much of ours one of it is."""

    name: str
    unit: Unit
    size: float = 1


DAYS = Shown("days", Unit.SECONDS, 86400)
FLOPS = Shown("FLOPs", Unit.FLOPS)
ZETTAFLOPS = Shown("e21 FLOPs", Unit.FLOPS, 1e21)
PF_DAYS = Shown("PF-days", Unit.FLOPS, 8.64e19)
TFLOPS_PER_TOKEN = Shown("TFLOPs/token", Unit.FLOPS_PER_TOKEN, 1e12)
TFLOP_PER_S = Shown("TFLOP/s", Unit.FLOP_PER_S, 1e12)
PFLOP_PER_S = Shown("PFLOP/s", Unit.FLOP_PER_S, 1e15)
PARAMETERS = Shown("parameters", Unit.PARAMETERS)
MILLIONS = Shown("M parameters", Unit.PARAMETERS, 1e6)
BILLIONS = Shown("B parameters", Unit.PARAMETERS, 1e9)
TOKENS = Shown("tokens", Unit.TOKENS)
PERCENT = Shown("%", Unit.FRACTION, 0.01)
HOURS = Shown("h", Unit.HOURS)
THOUSAND_HOURS = Shown("K h", Unit.HOURS, 1e3)
MILLION_HOURS = Shown("M h", Unit.HOURS, 1e6)
MILLION_USD = Shown("M USD", Unit.USD, 1e6)
BYTES = Shown("bytes", Unit.BYTES)
GB = Shown("GB", Unit.BYTES, 1e9)
GIB = Shown("GiB", Unit.BYTES, 2**30)
FACTOR = Shown("", Unit.NUMBER)


@dataclass(frozen=True, slots=True)
class Source:
    """A table, or a place in a text, from which figures come. One table of the page."""

    title: str
    citation: str
    about: str
    """What its rows have in common: inputs, and which closed form is held against them."""
    is_secondary: bool = False
    """It was seen in a text that quotes it, not in the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure."""

    source: Source
    what: str
    inputs: str = ""
    """In words; "" where `source.about` says all."""
    published: str
    """As its authors print it: "3.14e23", "1,720,320". How it is rounded is read from it."""
    unit: Shown
    computed: Callable[[], Quantity]
    tolerance: float = 0.0
    """How far apart they may be, as a fraction of the published figure; 0: by half of its last
    digit, its own rounding."""
    why: str = ""
    """Where the difference comes from; "" where it is only the rounding of the published figure."""
    differs_by: float | None = None
    """Computed over published, less 1, of a figure that is *not* reproduced; `why` says why."""

    @property
    def is_reproduced(self) -> bool:
        return self.differs_by is None

    @property
    def digits(self) -> Decimal:
        return Decimal(self.published.replace(",", ""))

    @property
    def rounding(self) -> float:
        """Half of the last digit that is printed, in the authors' unit."""
        exponent = self.digits.as_tuple().exponent
        assert isinstance(exponent, int), self.published
        return 0.5 * 10.0**exponent

    @property
    def ours(self) -> float:
        """The computed figure in the authors' unit."""
        return self.computed().value / self.unit.size

    @property
    def difference(self) -> float:
        """Computed over published, less 1."""
        return self.ours / float(self.digits) - 1

    @property
    def is_rounding(self) -> bool:
        """The computed figure, rounded as the published one, is the published one."""
        return abs(self.ours - float(self.digits)) <= self.rounding * (1 + 1e-9)


def mistakes(row: Row) -> list[str]:
    """What is wrong with a row, in words: of the figure, or of how it is stated."""
    return list(_mistakes(row))


def _mistakes(row: Row) -> Iterator[str]:
    value = row.computed()
    if not (row.source.title and row.source.citation and row.source.about and row.what):
        yield "it does not say where it comes from, or what it is"
    if value.unit is not row.unit.unit:
        yield f"it is computed in {value.unit} and published in {row.unit.unit}"
    if value.is_given:
        yield "it is not computed: it has no formula"
    if (row.tolerance > 0 or not row.is_reproduced) is not bool(row.why):
        yield "a difference is explained, and only a difference"
    yield from _distance(row) if row.is_reproduced else _apart(row)


def _distance(row: Row) -> Iterator[str]:
    far = abs(row.difference)
    if not row.tolerance:
        if not row.is_rounding:
            yield f"{row.ours:.8g} does not round to {row.published}"
        return
    if far > row.tolerance:
        yield f"it is {far:.3%} off, and may be {row.tolerance:.3%} off"
    if row.is_rounding or TIGHT * far < row.tolerance:
        yield f"it is {far:.3%} off, and needs no tolerance of {row.tolerance:.3%}"


def _apart(row: Row) -> Iterator[str]:
    assert row.differs_by is not None
    if row.is_rounding:
        yield "it is reproduced after all"
    if abs(row.difference - row.differs_by) > STATED:
        yield f"it differs by {row.difference:+.4f}, not by {row.differs_by:+.4f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Implied:
    """What a published figure implies, where its authors print nothing to hold that against."""

    source: Source
    what: str
    published: str
    """The figure that it follows from, with its unit."""
    computed: Callable[[], Quantity]
    implied: str
    """The computed figure as it stood when it was last looked at, in `unit`."""
    unit: Shown

    @property
    def ours(self) -> str:
        decimals = len(self.implied.partition(".")[2])
        return f"{self.computed().value / self.unit.size:.{decimals}f}"
