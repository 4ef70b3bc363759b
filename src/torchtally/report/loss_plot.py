"""The loss over the steps, drawn in braille dots, or in ASCII where the encoding has none.

Training losses are a line, validation losses marks on it. The axis of losses is logarithmic where
they span more than a decade.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchtally.progress import WIDTH, printable
from torchtally.report.braille import Place, braille
from torchtally.report.chart import ChartAxis, axis, places_between
from torchtally.report.report import is_ascii
from torchtally.units import format_count, format_loss

LossPoint = tuple[int, float]
"""(step, loss)"""

HEIGHT = 16
LEAST_ROWS = 4
BELOW = 3
"""Lines around the graph: the title, the axis and its labels."""
LARGEST = 1e300
"""Losses from here on are not drawn, as inf is not: their differences may overflow."""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """What a run's losses were."""

    training: tuple[LossPoint, ...]
    validation: tuple[LossPoint, ...] = ()
    title: str = "Loss"


@dataclass(frozen=True, slots=True)
class Axes:
    """Steps to the right, losses upwards; each place is a share from 0 to 1."""

    first: int
    last: int
    losses: ChartAxis

    def right(self, step: int) -> float:
        return (step - self.first) / max(self.last - self.first, 1)

    def up(self, loss: float) -> float:
        return self.losses.share(loss)


def loss_plot(
    curve: LossCurve, *, width: int = WIDTH, height: int = HEIGHT, encoding: str | None = "utf-8"
) -> str:
    """The plot as lines with their ends, at most `width` wide and `height` high.

    NaN and inf losses are not drawn but counted below. Without any finite loss, one line says so.
    """
    training, validation = _finite(curve.training), _finite(curve.validation)
    lost = len(curve.training) + len(curve.validation) - len(training) - len(validation)
    remark = f"Not drawn: {lost} NaN or inf losses." if lost else ""
    title = printable(curve.title)[:width]
    if not (training or validation):
        return f"{title}: no losses to draw. {remark}".rstrip() + "\n"
    axes = _axes([*training, *validation])
    is_plain = is_ascii(encoding)
    rows = max(height - BELOW - bool(lost), LEAST_ROWS)
    ticks = _ticks(axes, rows)
    margin = max(map(len, ticks.values()))
    columns = max(width - margin - 2, 10)
    if is_plain:
        cells = dict.fromkeys(_line(training, axes, rows, columns), "*")
    else:
        cells = braille(_line(training, axes, 4 * rows, 2 * columns))
    mark = "o" if is_plain else "●"
    cells |= {_place(axes, pair, rows, columns): mark for pair in validation}
    bar, tick = ("|", "+") if is_plain else ("│", "┤")
    lines = [title + (f" ({mark} on validation data)" if validation else "")]
    for row in range(rows):
        drawn = "".join(cells.get((row, column), " ") for column in range(columns))
        side = tick if row in ticks else bar
        lines.append(f"{ticks.get(row, '').rjust(margin)} {side}{drawn}".rstrip())
    lines += _x_axis(axes, columns, margin, is_plain)
    return "".join(f"{line[:width]}\n" for line in [*lines, *([remark] if remark else [])])


def _finite(points: Iterable[LossPoint]) -> list[LossPoint]:
    return [point for point in points if abs(point[1]) < LARGEST]


def _axes(points: Sequence[LossPoint]) -> Axes:
    steps, losses = [point[0] for point in points], [point[1] for point in points]
    return Axes(min(steps), max(steps), axis(losses))


def _ticks(axes: Axes, rows: int) -> dict[int, str]:
    """The loss at the middle of some rows, the first and the last among them."""
    count = max(rows // 4, 1)
    places = {round(n * (rows - 1) / count) for n in range(count + 1)}
    return {row: format_loss(axes.losses.value(1 - (row + 0.5) / rows)) for row in sorted(places)}


def _x_axis(axes: Axes, columns: int, margin: int, is_plain: bool) -> Iterator[str]:
    corner, bar = ("+", "-") if is_plain else ("└", "─")
    yield f"{' ' * margin} {corner}{bar * columns}"
    first, last = (f"step {format_count(count)}" for count in (axes.first, axes.last))
    indent = " " * (margin + 2)
    yield (
        indent + first
        if axes.first == axes.last
        else indent + first + last.rjust(columns - len(first))
    )


def _place(axes: Axes, point: LossPoint, rows: int, columns: int) -> Place:
    """Position of a point in a grid of so many rows and columns."""
    step, loss = point
    row, column = int((1 - axes.up(loss)) * rows), int(axes.right(step) * columns)
    return min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)


def _line(points: Sequence[LossPoint], axes: Axes, rows: int, columns: int) -> Iterator[Place]:
    """The places of the line: each column's mean loss, joined by the rows between them."""
    of_column: dict[int, list[float]] = {}
    for step, loss in points:
        column = _place(axes, (step, loss), rows, columns)[1]
        of_column.setdefault(column, []).append(axes.up(loss))
    before: Place | None = None
    for column in sorted(of_column):
        ups = of_column[column]
        row = min(max(int((1 - sum(ups) / len(ups)) * rows), 0), rows - 1)
        yield from places_between(before or (row, column), (row, column))
        before = (row, column)
