"""A chart as text: a letter for each point of a series."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtally.progress import WIDTH
from torchtally.table import Chart, Series
from torchtally.units import format_count, format_loss

ROWS = 14
DECADE = 10.0


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis; positions are fractions from 0 to 1."""

    low: float
    high: float
    is_logarithmic: bool

    def share(self, value: float) -> float:
        low, high, at = map(self._on_scale, (self.low, self.high, value))
        return (at - low) / (high - low)

    def value(self, share: float) -> float:
        """The value at this fraction."""
        low, high = self._on_scale(self.low), self._on_scale(self.high)
        at = low + share * (high - low)
        return math.exp(at) if self.is_logarithmic else at

    def _on_scale(self, value: float) -> float:
        return math.log(value) if self.is_logarithmic else value


def axis(values: Sequence[float], *, may_be_logarithmic: bool = True) -> ChartAxis:
    """The axis of these values, logarithmic if they are positive and span more than a decade."""
    low, high = min(values), max(values)
    if low == high:
        half = abs(low) / 2 or 0.5
        return ChartAxis(low - half, high + half, False)
    return ChartAxis(low, high, may_be_logarithmic and low > 0 and high > DECADE * low)


def chart_text(drawn: Chart, *, width: int = WIDTH, rows: int = ROWS) -> str:
    """The chart as lines of at most `width` characters."""
    points = [point for each in drawn.series for point in each.points]
    x = axis([point[0] for point in points], may_be_logarithmic=not drawn.x_is_whole)
    y = axis([point[1] for point in points])
    ticks = {
        row: format_loss(y.value(1 - row / (rows - 1)))
        for row in sorted({round(n * (rows - 1) / 4) for n in range(5)})
    }
    margin = max(map(len, ticks.values()))
    columns = max(width - margin - 2, 10)
    cells = _cells(drawn.series, x, y, rows, columns)
    lines = [drawn.title[:width]]
    for row in range(rows):
        text = "".join(cells.get((row, column), " ") for column in range(columns))
        side = "+" if row in ticks else "|"
        lines.append(f"{ticks.get(row, '').rjust(margin)} {side}{text}".rstrip())
    lines += _x_axis(drawn, x, columns, margin)
    lines += [f"{series.letter}  {series.name}"[:width] for series in drawn.series if series.name]
    return "".join(f"{line}\n" for line in [*lines, *([drawn.note] if drawn.note else [])])


def _x_axis(drawn: Chart, x: ChartAxis, columns: int, margin: int) -> Iterator[str]:
    def text(value: float) -> str:
        return format_count(round(value)) if drawn.x_is_whole else f"{value:.4g}"

    indent = " " * (margin + 2)
    yield f"{' ' * margin} +{'-' * columns}"
    first, last = text(x.low), text(x.high)
    scale = f"{drawn.x_title}{', logarithmic' * x.is_logarithmic}"
    middle = scale.center(max(columns - len(first) - len(last), 0))
    yield f"{indent}{first}{middle}{last}".rstrip()


def _cells(
    series: Sequence[Series], x: ChartAxis, y: ChartAxis, rows: int, columns: int
) -> dict[tuple[int, int], str]:
    cells: dict[tuple[int, int], str] = {}
    for each in reversed(series):
        places = [
            (round((1 - y.share(point[1])) * (rows - 1)), round(x.share(point[0]) * (columns - 1)))
            for point in each.points
        ]
        for a, b in zip(places, places[1:] if each.is_joined else (), strict=False):
            cells |= dict.fromkeys(places_between(a, b), each.letter)
        cells |= dict.fromkeys(places, each.letter)
    return cells


def places_between(a: tuple[int, int], b: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Places from one to the other, without gaps."""
    count = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    for n in range(count + 1):
        yield round(a[0] + (b[0] - a[0]) * n / count), round(a[1] + (b[1] - a[1]) * n / count)
