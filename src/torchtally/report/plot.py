"""A plot for a terminal: dots of braille, or plain letters where those cannot be written.

The legend and all remarks stand below it; the whole fits 80 columns and 24 lines.
"""

from collections.abc import Callable, Iterator
from itertools import chain, groupby
from math import ceil, floor
from operator import itemgetter

from rich.cells import cell_len
from rich.text import Text

from torchtally.progress import printable
from torchtally.report.braille import Place, braille
from torchtally.report.grid import IN_COLUMNS, INDENT, wrap
from torchtally.report.plain import cut_left, cut_right
from torchtally.report.terminal import join
from torchtally.units import Unit, format_flop_per_s, format_flops, format_fraction
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot, Scale

LEAST_ROWS = 9
TITLE, AXIS, TICKS = range(3)
"""Lines around the graph."""
COLOURS = ("green", "cyan", "magenta", "yellow")
"""Of the series, in order, and again from the first."""
Cells = dict[Place, tuple[str, str]]
"""(character, style)."""


def plot_text(
    plot: Plot,
    *,
    width: int = 80,
    height: int = 24,
    is_coloured: bool = False,
    is_ascii: bool = False,
) -> str:
    """The plot with its legend, `height` lines high, or as many as it takes."""
    below = [*_legend(plot, width), *_remarks(plot, width)]
    room = height - len(below) - len((TITLE, AXIS, TICKS))
    graph, limits = _graph(plot, width, max(LEAST_ROWS, room), is_ascii)
    if limits:
        graph, limits = _graph(plot, width, max(LEAST_ROWS, room - len(limits)), is_ascii)
    more = [Text(line, style="dim") for limit in limits for line in wrap(limit, width)]
    return join([_title(plot, width), *graph, *more, *below], is_coloured)


def value_text(value: float, scale: Scale) -> str:
    """A number of an axis, with its unit: "1.29 TFLOP/s", "0.333 FLOPs/byte"."""
    return VALUES[scale](value)


def tick_text(value: float, scale: Scale) -> str:
    """Tick as short as it gets, without the unit: "100 T"."""
    number, _, prefix = value_text(value, scale).removesuffix(scale).strip().partition(" ")
    return f"{float(number):g} {prefix}".strip()


VALUES: dict[Scale, Callable[[float], str]] = {
    Scale.FLOPS: lambda value: format_flops(round(value)),
    Scale.FLOP_PER_S: format_flop_per_s,
    Scale.FLOPS_PER_BYTE: lambda value: f"{value:.3g} {Scale.FLOPS_PER_BYTE}",
}


def _title(plot: Plot, width: int) -> Text:
    axes = f": {plot.y.scale} by {plot.x.scale}"
    return Text(cut_right(plot.title, width - len(axes)) + axes, style="bold")


# The graph -------------------------------------------------------------------------------------


def _graph(plot: Plot, width: int, rows: int, is_ascii: bool) -> tuple[list[Text], list[str]]:
    """Its lines, and what it had no room for: the names of limits."""
    labels = {_row(plot.y, tick, rows): tick_text(tick, plot.y.scale) for tick in plot.y.ticks()}
    room = max(map(len, labels.values()), default=0)
    columns = max(width - len(INDENT) - room - 2, 10)
    cells = _cells(plot, rows, columns, is_ascii)
    limits = _put_limits(plot, cells, rows, columns, is_ascii)
    bar, tick = ("|", "+") if is_ascii else ("│", "┤")
    lines = []
    for row in range(rows):
        label = labels.get(row, "")
        line = Text(f"{INDENT}{label.rjust(room)} ")
        line.append(tick if label else bar, style="dim")
        drawn = (cells.get((row, column), (" ", "")) for column in range(columns))
        for style, run in groupby(drawn, key=itemgetter(1)):
            line.append("".join(char for char, _ in run), style=style)
        line.rstrip()
        lines.append(line)
    return [*lines, *_x_axis(plot.x, columns, f"{INDENT}{' ' * room} ", is_ascii)], limits


def _x_axis(axis: Axis, columns: int, indent: str, is_ascii: bool) -> Iterator[Text]:
    corner, bar, tick = ("+", "-", "+") if is_ascii else ("└", "─", "┬")
    line, labels = [bar] * columns, [" "] * (columns + 1)
    free = 0
    for value in axis.ticks():
        column, text = _column(axis, value, columns), tick_text(value, axis.scale)
        line[column] = tick
        start = min(max(column + 1 - len(text) // 2, 0), columns + 1 - len(text))
        if start >= free:
            labels[start : start + len(text)] = text
            free = start + len(text) + 1
    yield Text(indent).append(corner + "".join(line), style="dim")
    yield Text((indent + "".join(labels)).rstrip())


def _row(axis: Axis, value: float, rows: int) -> int:
    return min(max(floor((1 - axis.share(value)) * rows), 0), rows - 1)


def _column(axis: Axis, value: float, columns: int) -> int:
    return min(max(floor(axis.share(value) * columns), 0), columns - 1)


def _cells(plot: Plot, rows: int, columns: int, is_ascii: bool) -> Cells:
    """Curves, and over them the marks."""
    draw = _ascii_curves if is_ascii else _braille_curves
    cells = {place: (char, "dim") for place, char in draw(plot, rows, columns).items()}
    _put_marks(plot, cells, rows, columns, is_ascii)
    return cells


def _put_marks(plot: Plot, cells: Cells, rows: int, columns: int, is_ascii: bool) -> None:
    """Letters first. One whose place is taken stands beside it; a dot is left out there."""
    occupied: set[Place] = set()
    plain = "o" if is_ascii else "•"
    for mark in sorted(plot.marks, key=lambda mark: not mark.symbol):
        row, column = _row(plot.y, mark.y, rows), _column(plot.x, mark.x, columns)
        near = [(row + up, column + right) for up, right in (BESIDE if mark.symbol else BESIDE[:1])]
        free = (
            at for at in near if at not in occupied and 0 <= at[0] < rows and 0 <= at[1] < columns
        )
        place = next(free, None)
        if place is not None:
            occupied.add(place)
            cells[place] = (mark.symbol or plain, _style(mark, plot))


BESIDE = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (0, 2), (0, -2), (2, 0))


def _style(mark: Mark, plot: Plot) -> str:
    return f"bold {COLOURS[mark.series % len(COLOURS)]}" if plot.series else "bold"


def _put_limits(plot: Plot, cells: Cells, rows: int, columns: int, is_ascii: bool) -> list[str]:
    """Puts limits in the empty corner above a roof, below one another. What found no empty row
    comes back.
    """
    left_over, row = [], 0
    for text in _limits(plot, is_ascii):
        ends = len(text) + 3
        empty = (
            at
            for at in range(row, rows)
            if all((at, number) not in cells for number in range(ends))
        )
        place = next(empty, None) if ends <= columns else None
        if place is None:
            left_over.append(text)
        else:
            cells |= {(place, at): (char, "dim") for at, char in enumerate(text, 1)}
            row = place + 1
    return left_over


def _limits(plot: Plot, is_ascii: bool) -> Iterator[str]:
    """What the curves are: "promised 3.35 TB/s, bfloat16 989.40 TFLOP/s"."""
    solid, dotted = ("--", "..") if is_ascii else ("⠒⠒", "⠐⠐")
    for basis in Basis:
        limits = [_limit(curve) for curve in plot.curves if curve.basis is basis]
        if limits:
            key = solid if basis is Basis.PROMISED else dotted
            yield f"{key} {basis} {', '.join(limits)}"


def _limit(curve: Curve) -> str:
    name = "" if curve.unit is Unit.BYTE_PER_S else f"{printable(curve.name)} "
    return f"{name}{IN_COLUMNS[curve.unit](curve.limit)}"


def _braille_curves(plot: Plot, rows: int, columns: int) -> dict[Place, str]:
    """Every dot of a promise, every other one of a measurement."""
    dots = (
        list(_steps(curve, plot, 4 * rows, 2 * columns))[
            :: 1 if curve.basis is Basis.PROMISED else 3
        ]
        for curve in plot.curves
    )
    return braille(chain.from_iterable(dots))


def _ascii_curves(plot: Plot, rows: int, columns: int) -> dict[Place, str]:
    cells: dict[Place, str] = {}
    for curve in sorted(plot.curves, key=lambda curve: curve.basis is Basis.PROMISED):
        is_flat = curve.points[0][1] == curve.points[-1][1]
        char = ("-" if is_flat else "/") if curve.basis is Basis.PROMISED else "."
        cells |= dict.fromkeys(_steps(curve, plot, rows, columns), char)
    return cells


def _steps(curve: Curve, plot: Plot, rows: int, columns: int) -> Iterator[Place]:
    """The places of a curve within the graph, without gaps."""
    for (x0, y0), (x1, y1) in zip(curve.points, curve.points[1:], strict=False):
        left, right = plot.x.share(x0) * columns, plot.x.share(x1) * columns
        low, high = (1 - plot.y.share(y0)) * rows, (1 - plot.y.share(y1)) * rows
        count = max(1, ceil(max(abs(right - left), abs(high - low))))
        for n in range(count + 1):
            row = floor(low + (high - low) * n / count)
            column = floor(left + (right - left) * n / count)
            if 0 <= row < rows and 0 <= column < columns:
                yield row, column


# What stands below it --------------------------------------------------------------------------


def _legend(plot: Plot, width: int) -> Iterator[Text]:
    if not plot.listed:
        yield from _key(plot, width)
        return
    kinds = max(len(plot.series_title), *map(len, plot.series))
    titles = (plot.y.scale.rjust(8), plot.x.scale.rjust(10), plot.series_title.ljust(kinds))
    head = f"{INDENT}    share  {'  '.join(titles)}  "
    room = max(width - len(head), 10)
    place_room = min(room * 3 // 5, max(cell_len(printable(mark.place)) for mark in plot.listed))
    name_room = room - place_room - 2
    yield Text(f"{head}{'operator'.ljust(name_room)}  line", style="dim")
    for mark in plot.listed:
        name, place = cut_left(mark.name, name_room), cut_left(mark.place, place_room)
        numbers = (
            format_fraction(mark.weight).rjust(7),
            tick_text(mark.y, plot.y.scale).rjust(8),
            f"{mark.x:.3g}".rjust(10),
            plot.series[mark.series].ljust(kinds),
        )
        line = Text(INDENT).append(mark.symbol, style=_style(mark, plot))
        line.append(f" {'  '.join(numbers)}  {name}{' ' * (name_room - cell_len(name))}  {place}")
        line.rstrip()
        yield line


def _key(plot: Plot, width: int) -> Iterator[Text]:
    """What the letters of marks without a legend stand for."""
    symbols = {mark.series: mark.symbol for mark in plot.marks if mark.symbol}
    names = (f"{symbols[symbol]} {plot.series[symbol]}" for symbol in sorted(symbols))
    for line in wrap(", ".join(names), width):
        yield Text(line)


def _remarks(plot: Plot, width: int) -> Iterator[Text]:
    shares = ", ".join(f"{name} ({format_fraction(share)})" for name, share in plot.left_out)
    text = " ".join(
        remark for remark in (f"Not drawn: {shares}." if shares else "", plot.note) if remark
    )
    for line in wrap(text, width):
        yield Text(line, style="dim")
