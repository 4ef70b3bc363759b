"""Reports as one page for a browser: a drawn plot and tables, without scripts and without network.

Names come from strangers. Every text and attribute passes `element`, which escapes it, and the page
forbids itself to load or to run anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain

from torchtally.ledger import Ledger
from torchtally.report.grid import IN_COLUMNS
from torchtally.report.plain import LIMIT, printable
from torchtally.report.plot import tick_text, value_text
from torchtally.report.style import STYLE
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit, format_fraction, format_seconds
from torchtally.views import by
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content-Security-Policy: nothing but the style that the page itself holds."""


class Html(str):
    """Text that is markup already. Only `element` and `joined` make it."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float) -> Html:
    """A tag around its children. A child that is no Html is a stranger's text, and escaped.

    `class_` is the attribute class, and `viewBox` keeps its case; "_" elsewhere becomes "-".
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


VOID = frozenset({"meta"})
"""Elements without an end."""


def joined(children: Iterable[str]) -> Html:
    """One behind the other, each escaped unless it is markup."""
    return Html("".join(it if isinstance(it, Html) else _safe(it) for it in children))


def _safe(text: str) -> str:
    return escape(printable(text[:LIMIT]), quote=True)


def _attribute(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else _safe(value)


def page(
    title: str, *, facts: Sequence[str], plots: Sequence[Plot], tables: Sequence[Table]
) -> str:
    """A whole document. `facts` are sentences below its title."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    body = element(
        "body",
        element("h1", title),
        *(element("p", it) for it in facts),
        *map(plot_html, plots),
        *map(table_html, tables),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


LEDGER_VIEWS = ("bound", "line", "repeated-module")
MOST_ROWS = 50


def ledger_page(ledger: Ledger, plot: Plot) -> str:
    """A step's roofline plot, and what bounds it by bound, line and module."""
    trace = ledger.trace
    step_s = ledger.step_s
    took = "" if step_s is None else f", {format_seconds(step_s)} predicted"
    facts = (
        f"On {trace.chip}, per {ledger.period}{took}.",
        f"PyTorch {trace.torch_version}; {ledger.attention.description}.",
    )
    tables = [by(ledger, key).top(MOST_ROWS) for key in LEDGER_VIEWS]
    return page(trace.script, facts=facts, plots=[plot], tables=tables)


# Tables ----------------------------------------------------------------------------------------


def table_html(table: Table) -> Html:
    """A table with all its columns, those of text first, its totals and its note."""
    columns = table.columns
    order = sorted(range(len(columns)), key=lambda place: not columns[place].unit.is_text)
    head = (_head(columns[it]) for it in order)
    rows = (
        element("tr", *(_cell(row[it], columns[it].unit) for it in order)) for row in table.rows
    )
    parts = [element("thead", element("tr", *head)), element("tbody", *rows)]
    if any(cell is not None for cell in table.totals):
        parts.append(element("tfoot", element("tr", *_totals(table, order))))
    left_out = f"{table.left_out} more row{'s' * (table.left_out > 1)}." if table.left_out else ""
    remarks = " ".join(it for it in (left_out, table.note) if it)
    return element(
        "section",
        element("h2", table.title),
        element("div", element("table", *parts), class_="wide"),
        *([element("p", remarks)] if remarks else []),
    )


def _head(column: Column) -> Html:
    return element("th", column.title, scope="col", **_class(column.unit))


def _cell(cell: Cell, unit: Unit) -> Html:
    text = cell_text(cell, unit)
    hover = {"title": text} if unit in (Unit.PLACE, Unit.TEXT) and len(text) > SHORT else {}
    return element("td", text, **_class(unit), **hover)


SHORT = 60
"""Characters of a text that a cell surely shows whole."""


def cell_text(cell: Cell, unit: Unit) -> str:
    """A text as it is, a number in its unit."""
    if isinstance(cell, str):
        return cell
    if cell is None:
        return "" if unit.is_text else "-"
    return IN_COLUMNS[unit](cell)


def _class(unit: Unit) -> dict[str, str]:
    if not unit.is_text:
        return {"class_": "number"}
    return {"class_": "code"} if unit in (Unit.PLACE, Unit.TEXT) else {}


def _totals(table: Table, order: Sequence[int]) -> Iterator[Html]:
    """With "total" in the first column of text."""
    labels = {order[0]: "total"} if table.columns[order[0]].unit.is_text else {}
    for place in order:
        cell, unit = table.totals[place], table.columns[place].unit
        text = labels.get(place, "" if cell is None else cell_text(cell, unit))
        yield element("td", text, **_class(unit))


# Plots -----------------------------------------------------------------------------------------

WIDTH, HEIGHT = 720.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 30.0, 34.0, 62.0
"""Margins: room for labels, also where a narrow screen makes them large."""
ROW = 22.0
"""From one line of text to the next."""
LETTER = 15.0
"""The side of a letter with some room around it."""
BESIDE = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1), (2, 0),
          (-2, 0), (0, 2), (0, -2))  # fmt: skip
LEAST_RADIUS, LARGEST_RADIUS = 4.0, 20.0


def plot_html(plot: Plot) -> Html:
    """The drawing, what its colours and letters mean, and what is not in it."""
    shares = ", ".join(f"{name} ({format_fraction(share)})" for name, share in plot.left_out)
    remarks = " ".join(it for it in (f"Not drawn: {shares}." if shares else "", plot.note) if it)
    return element(
        "figure",
        element("h2", plot.title),
        svg(plot),
        _key(plot),
        *([_legend(plot)] if plot.listed else []),
        *([element("p", remarks)] if remarks else []),
    )


def svg(plot: Plot) -> Html:
    """The drawing alone."""
    drawn = chain(
        _axes(plot), _curves(plot.curves, plot), _marks(plot), _limits(plot),
        _letters(plot),
    )  # fmt: skip
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return element("svg", *drawn, viewBox=box, role="img", aria_label=plot.title)


def _x(value: float, axis: Axis) -> float:
    return LEFT + min(max(axis.share(value), 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def _y(value: float, axis: Axis) -> float:
    return HEIGHT - BOTTOM - min(max(axis.share(value), 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)


def _line(x0: float, y0: float, x1: float, y1: float, class_: str) -> Html:
    return element("line", x1=x0, y1=y0, x2=x1, y2=y1, class_=class_)


def _axes(plot: Plot) -> Iterator[Html]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in plot.x.ticks():
        x = _x(value, plot.x)
        yield _line(x, TOP, x, bottom, "grid")
        label = tick_text(value, plot.x.scale)
        yield element("text", label, x=x, y=bottom + 22, class_="tick middle")
    for value in plot.y.ticks():
        y = _y(value, plot.y)
        yield _line(LEFT, y, right, y, "grid")
        label = tick_text(value, plot.y.scale)
        yield element("text", label, x=LEFT - 7, y=y + 5, class_="tick end")
    yield _line(LEFT, bottom, right, bottom, "axis")
    yield _line(LEFT, TOP, LEFT, bottom, "axis")
    yield element("text", f"{plot.y.title} ({plot.y.scale})", x=4, y=TOP - 14)
    x_title = f"{plot.x.title} ({plot.x.scale})"
    yield element("text", x_title, x=(LEFT + right) / 2, y=HEIGHT - 10, class_="middle")


def _curves(curves: Iterable[Curve], plot: Plot) -> Iterator[Html]:
    for it in curves:
        points = " ".join(f"{_x(x, plot.x):.5g},{_y(y, plot.y):.5g}" for x, y in it.points)
        series = "" if it.series is None else f" {_series(it.series)}"
        hover = element("title", _limit(it))
        yield element("polyline", hover, points=points, class_=f"curve {it.basis}{series}")


def _limits(plot: Plot) -> Iterator[Html]:
    """What the curves are. Below a roof there is no room, but above its slope there is."""
    has_slope = any(not _is_flat(it) for it in plot.curves)
    for row, it in enumerate(plot.curves if has_slope else ()):
        yield element("text", _limit(it), x=LEFT + 10, y=TOP + 18 + ROW * row, class_="limit")
    for it in filter(_is_flat, plot.curves):
        x_end, y_end = it.points[-1]
        x, y = _x(x_end, plot.x) - 4, _y(y_end, plot.y) - 6
        if not has_slope or it.basis is Basis.PROMISED:
            text = it.name if has_slope else _limit(it)
            yield element("text", text, x=x, y=y, class_="limit end")


def _is_flat(it: Curve) -> bool:
    return it.points[0][1] == it.points[-1][1]


def _limit(it: Curve) -> str:
    """As "bfloat16 989.40 TFLOP/s promised"."""
    return f"{it.name} {IN_COLUMNS[it.unit](it.limit)} {it.basis}"


def _series(number: int) -> str:
    return f"series-{number % 4}"


def _marks(plot: Plot) -> Iterator[Html]:
    """The heaviest below, so that every one can be pointed at."""
    heaviest = max((it.weight for it in plot.marks), default=0.0)
    for it in plot.marks:
        share = it.weight / heaviest if heaviest else 0.0
        radius = max(LEAST_RADIUS, LARGEST_RADIUS * share**0.5)
        yield _shape(it.series, _x(it.x, plot.x), _y(it.y, plot.y), radius, _hover(it, plot))


def _shape(series: int, x: float, y: float, r: float, *children: Html) -> Html:
    """A circle, square, triangle or diamond: series differ by more than colour."""
    class_ = f"mark {_series(series)}"
    if series % 4 == 0:
        return element("circle", *children, cx=x, cy=y, r=r, class_=class_)
    if series % 4 == 1:
        return element("rect", *children, x=x - r, y=y - r, width=2 * r, height=2 * r,
                       class_=class_)  # fmt: skip
    corners = [(0, -1.2), (1.2, 1), (-1.2, 1)] if series % 4 == 2 else CORNERS
    points = " ".join(f"{x + r * dx:.5g},{y + r * dy:.5g}" for dx, dy in corners)
    return element("polygon", *children, points=points, class_=class_)


CORNERS = [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)]


def _hover(it: Mark, plot: Plot) -> Html:
    lines = (
        it.name,
        it.detail,
        it.place,
        f"{value_text(it.y, plot.y.scale)} at {value_text(it.x, plot.x.scale)}",
        f"{format_fraction(it.weight)} of the time" if it.weight else "",
        f"{plot.series_title}: {plot.series[it.series]}",
    )
    return element("title", "; ".join(line for line in lines if line))


def _letters(plot: Plot) -> Iterator[Html]:
    """Each in its mark, or beside it where another letter stands."""
    taken: list[tuple[float, float]] = []
    for it in plot.listed:
        x, y = _x(it.x, plot.x), _y(it.y, plot.y)
        near = [(x + LETTER * dx, y + LETTER * dy) for dx, dy in BESIDE]
        free = (at for at in near if all(_is_apart(at, other) for other in taken))
        place = next(free, near[0])
        taken.append(place)
        yield element("text", it.symbol, x=place[0], y=place[1], class_="letter")


def _is_apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) >= LETTER - 0.1 or abs(one[1] - other[1]) >= LETTER - 0.1


def _key(plot: Plot) -> Html:
    of_curves = (it.series for it in plot.curves if it.series is not None)
    used = sorted({*(it.series for it in plot.marks), *of_curves})
    items = [
        element("li", element("svg", _shape(it, 12, 7, 5), viewBox="0 0 24 14"), " ",
                f"{plot.series_title}: {plot.series[it]}")
        for it in used if it is not None
    ]  # fmt: skip
    for name in Basis:
        if any(it.basis is name for it in plot.curves):
            line = _line(0, 7, 24, 7, f"curve {name}")
            items.append(element("li", element("svg", line, viewBox="0 0 24 14"), " ", name))
    return element("ul", *items, class_="key")


def _legend(plot: Plot) -> Html:
    titles = ("", "share", plot.y.scale, plot.x.scale, plot.series_title, "operator", "line", "on")
    numbers = {"share", plot.y.scale, plot.x.scale}
    head = (
        element("th", it, scope="col", **({"class_": "number"} if it in numbers else {}))
        for it in titles
    )
    rows = (
        element(
            "tr",
            element("td", it.symbol),
            element("td", format_fraction(it.weight), class_="number"),
            element("td", value_text(it.y, plot.y.scale), class_="number"),
            element("td", f"{it.x:.3g}", class_="number"),
            element("td", plot.series[it.series]),
            element("td", it.name, class_="code"),
            element("td", it.place, class_="code"),
            element("td", it.detail, class_="code"),
        )
        for it in plot.listed
    )
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", table, class_="wide")
