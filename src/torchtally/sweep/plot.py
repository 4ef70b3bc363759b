"""ASCII charts of a sweep's losses, one letter per run or series.

If a number has three or more values, the final loss over it; else the losses over steps.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from torchtally.sweep.definition import Definition, short_names
from torchtally.sweep.keys import hint_of, is_number, value_text
from torchtally.sweep.results import RunResult, Status, is_validated, rank_results
from torchtally.units import format_count, format_loss

WIDTH = 80
ROWS = 14
MOST_CURVES = 6
MOST_SERIES = 6
LEAST_VALUES = 3
"""Of a number; fewer do not show a curve."""
DECADE = 10.0
LARGEST = 1e300
"""Losses from here on are not drawn, as inf is not: their differences may overflow."""

XY = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one letter."""

    letter: str
    points: tuple[XY, ...]
    name: str = ""
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over one axis; the first are drawn on top."""

    title: str
    x_title: str
    series: tuple[Series, ...]
    x_is_whole: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    """Letters of runs, by name."""
    note: str = ""


def chart(definition: Definition, results: Sequence[RunResult]) -> Chart | None:
    """The most informative chart; None if there is nothing to compare."""
    drawn = [result for result in rank_results(results) if _is_drawable(result.final_loss)]
    if len(drawn) < 2:
        return None
    return _over_a_value(definition, results) or _over_steps(drawn)


def _is_drawable(loss: float | None) -> bool:
    return loss is not None and abs(loss) < LARGEST


def _over_a_value(definition: Definition, results: Sequence[RunResult]) -> Chart | None:
    """The final loss over the number with the most values, one letter per combination of the
    others.

    Diverged runs are at the upper edge.
    """
    counts = {
        key: len({dict(result.point.values)[key] for result in results})
        for key in definition.varying_keys
        if is_number(hint_of(key))
    }
    key = max(counts, key=lambda name: counts[name], default=None)
    if key is None or counts[key] < LEAST_VALUES:
        return None
    others = [name for name in definition.varying_keys if name != key]
    short = short_names(definition.varying_keys)
    by_validation = is_validated(results)
    points_by_series: dict[str, list[XY]] = {}
    diverged: list[float] = []
    for each in rank_results(results):
        values = dict(each.point.values)
        loss = each.validation_loss if by_validation else each.final_loss
        if values[key] is None:
            continue
        if each.status is Status.DIVERGED:
            diverged.append(float(values[key]))
        elif loss is not None and _is_drawable(loss):
            name = ", ".join(f"{short[name]}={value_text(values[name])}" for name in others)
            points_by_series.setdefault(name, []).append((float(values[key]), loss))
    if sum(map(len, points_by_series.values())) < 2:
        return None
    if len(points_by_series) > MOST_SERIES:
        points_by_series = {"": [pair for each in points_by_series.values() for pair in each]}
    top = max(loss for points in points_by_series.values() for _, loss in points)
    letters = ["o"] if len(points_by_series) == 1 else ascii_lowercase
    series = [
        Series(letter, tuple(sorted(points)), name)
        for letter, (name, points) in zip(letters, points_by_series.items(), strict=False)
    ]
    if diverged:
        series.append(Series("X", tuple((value, top) for value in sorted(diverged)), "diverged"))
    which = "validation" if by_validation else "training"
    return Chart(f"Last {which} loss by {key}", short[key], tuple(series))


def _over_steps(drawn: Sequence[RunResult]) -> Chart:
    """The losses of the best runs; the table shows their letters."""
    best = drawn[:MOST_CURVES]
    left_out = len(drawn) - len(best)
    marks = {
        result.point.name: letter for letter, result in zip(ascii_lowercase, best, strict=False)
    }
    series = tuple(
        Series(
            marks[result.point.name],
            tuple((float(step), loss) for step, loss in result.training if _is_drawable(loss)),
            is_joined=True,
        )
        for result in best
    )
    note = f"{left_out} more are not shown." if left_out else ""
    return Chart("Training loss by step", "step", series, True, marks, note)


# Drawing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis; positions are fractions from 0 to 1."""

    low: float
    high: float
    is_logarithmic: bool

    def share(self, value: float) -> float:
        low, high, at = map(self._scaled, (self.low, self.high, value))
        return (at - low) / (high - low)

    def value(self, share: float) -> float:
        """The value at this fraction."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        at = low + share * (high - low)
        return math.exp(at) if self.is_logarithmic else at

    def _scaled(self, value: float) -> float:
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
            cells |= dict.fromkeys(_places_between(a, b), each.letter)
        cells |= dict.fromkeys(places, each.letter)
    return cells


def _places_between(a: tuple[int, int], b: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Places from one to the other, without gaps."""
    count = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    for n in range(count + 1):
        yield round(a[0] + (b[0] - a[0]) * n / count), round(a[1] + (b[1] - a[1]) * n / count)
