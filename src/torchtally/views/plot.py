"""A finished plot: marks and curves on two logarithmic axes, in FLOPs, bytes and seconds."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor, inf, log10

from torchtally.units import Unit


class Scale(StrEnum):
    """What an axis counts. A renderer picks the prefix."""

    FLOPS = "FLOPs"
    FLOP_PER_S = "FLOP/s"
    FLOPS_PER_BYTE = "FLOPs/byte"


class Basis(StrEnum):
    """Who says that a limit is where it is."""

    PROMISED = "promised"
    """A data sheet."""
    ESTIMATED = "estimated"
    """An estimate from cores, clock and instruction width."""
    ACHIEVED = "achieved"
    """Somebody measured it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis: what it shows, and from where to where."""

    title: str
    scale: Scale
    low: float
    high: float

    def share(self, value: float) -> float:
        """Share of the axis at which a value stands: 0 at its beginning, 1 at its end."""
        return log10(value / self.low) / log10(self.high / self.low)

    def ticks(self) -> tuple[float, ...]:
        """Round values along the axis: powers of ten, with 2 and 5 times them on a short one."""
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        steps = (1, 2, 5) if self.high < 1000 * self.low else (1,)
        ticks = (step * 10.0**power for power in powers for step in steps)
        return tuple(value for value in ticks if self.low <= value <= self.high)


@dataclass(frozen=True, slots=True)
class Curve:
    """A limit: straight on logarithmic axes from point to point."""

    name: str
    limit: float
    unit: Unit
    points: tuple[tuple[float, float], ...]
    basis: Basis
    series: int | None = None
    """Whose it is, as a place in `Plot.series`; None: everybody's."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing at one place."""

    x: float
    y: float
    symbol: str
    """One letter, or "" for what has none of its own."""
    series: int
    """Its place in `Plot.series`."""
    weight: float = 0.0
    """Its share of the whole, from 0 to 1."""
    name: str = ""
    detail: str = ""
    place: str = ""
    """The line of source that it belongs to; "train.py:7 +2" where there are two more."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Marks and curves. The heaviest mark comes first, and is drawn where two meet."""

    title: str
    x: Axis
    y: Axis
    series_title: str
    """What the marks' colours tell apart: bounds, dtypes."""
    series: tuple[str, ...]
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    listed: tuple[Mark, ...] = ()
    """Those of the marks that a legend explains one by one."""
    left_out: tuple[tuple[str, float], ...] = ()
    """What is not drawn, and its share of the whole."""
    note: str = ""
    """What a reader must know to read the plot right."""


def span(values: Iterable[float], margin: float = 1.6) -> tuple[float, float]:
    """Ends of an axis: from below the least to above the greatest, and at least two decades."""
    positive = [value for value in values if 0 < value < inf]
    if not positive:
        return 1.0, 100.0
    low, high = min(positive) / margin, max(positive) * margin
    widening = max(1.0, 100.0 * low / high) ** 0.5
    return low / widening, high * widening
