"""Reports as one page for a browser: a drawn plot and tables, without scripts and without network.

Names are untrusted. Every text and attribute passes `element`, which escapes it, and the page
forbids itself to load or to run anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain

from torchtally.progress import printable
from torchtally.report.glossary import glossary, terms_in
from torchtally.report.grid import cell_text, text_first, totals_text
from torchtally.report.plain import LIMIT
from torchtally.report.plot import tick_text, value_text
from torchtally.report.prose import in_words, remarks
from torchtally.report.style import style
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit, format_fraction
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content-Security-Policy: nothing but the style that the page itself holds."""


class Html(str):
    """Text that is markup already. Only `element` and `join` make it."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float) -> Html:
    """A tag around its children. A child that is not Html is untrusted text, and escaped.

    `class_` is the attribute class, and `viewBox` keeps its case; "_" elsewhere becomes "-".
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


VOID = frozenset({"meta"})
"""Elements without an end."""


def join(children: Iterable[str]) -> Html:
    """One behind the other, each escaped unless it is markup."""
    return Html("".join(child if isinstance(child, Html) else _safe(child) for child in children))


def _safe(text: str) -> str:
    return escape(printable(text[:LIMIT]), quote=True)


def _attribute(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else _safe(value)


def page(
    title: str,
    *,
    facts: Sequence[str],
    plots: Sequence[Plot],
    tables: Sequence[Table],
    remarks: Sequence[str] = (),
    text: str = "",
) -> str:
    """A whole document. `facts` are sentences below its title, `text` is preformatted."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="generator", content="torchtally"),
        element("title", title),
        element("style", Html(style("page"))),
    )
    body = element(
        "body",
        element("h1", title),
        *(element("p", fact) for fact in facts),
        *map(plot_html, plots),
        *map(table_html, tables),
        *(element("p", remark) for remark in remarks),
        *([preformatted_element(text)] if text else []),
        *_terms(column.title for table in tables for column in table.columns),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _terms(texts: Iterable[str]) -> Iterator[Html]:
    """The glossary's terms that occur in them. Texts are ours: no stranger's name adds a term."""
    terms = list(terms_in(texts))
    if terms:
        pairs = (
            (element("dt", term, id=anchor(term)), element("dd", glossary()[term]))
            for term in terms
        )
        yield element("section", element("h2", "Terms"), element("dl", *chain(*pairs)))


def anchor(term: str) -> str:
    """Anchor on a page at which it is explained."""
    return f"term-{term.replace(' ', '-').replace('/', '-per-').lower()}"


def preformatted_element(text: str) -> Html:
    """Lines as they are."""
    return element("pre", Html("\n".join(map(_safe, text.splitlines()))))


# Tables ----------------------------------------------------------------------------------------


def table_html(table: Table) -> Html:
    """A table with all columns for readers, those of text first, its totals and its note."""
    table = table.for_readers()
    return element(
        "section", element("h2", in_words(table.title)), *grid_html(table, has_terms=True)
    )


def grid_html(table: Table, *, bars: int | None = None, has_terms: bool = False) -> Iterator[Html]:
    """The table without its title, and its note. Cells of the column at the place `bars` have
    a class for their share of its total, for a style that draws it: "bar-0" to "bar-20". Where
    the page explains terms, a title that is one leads there.
    """
    columns = table.columns
    order = text_first(table)
    head = (_head(columns[index], has_terms) for index in order)
    rows = (
        element(
            "tr",
            *(
                _cell(
                    row[index],
                    columns[index].unit,
                    share=_share(row[index], table.totals[index]) if index == bars else None,
                )
                for index in order
            ),
        )
        for row in table.rows
    )
    parts = [element("thead", element("tr", *head)), element("tbody", *rows)]
    if any(cell is not None for cell in table.totals):
        parts.append(element("tfoot", element("tr", *_totals(table, order))))
    yield element("div", element("table", *parts), class_="wide")
    if text := remarks(table):
        yield element("p", text)


def _share(cell: Cell, total: Cell) -> float | None:
    """None where there is none."""
    if isinstance(cell, str) or isinstance(total, str) or not total or cell is None:
        return None
    return min(max(cell / total, 0.0), 1.0)


def _head(column: Column, has_terms: bool) -> Html:
    title = column.title
    if title in glossary():
        hover = {"title": glossary()[title]}
        link = {"href": f"#{anchor(title)}"} if has_terms else {}
        title = element("a" if has_terms else "span", title, **hover, **link)
    return element("th", title, scope="col", **_class(column.unit))


def _cell(cell: Cell, unit: Unit, *, share: float | None = None) -> Html:
    text = cell_text(cell, unit)
    hover = {"title": text} if unit.is_code and len(text) > SHORT else {}
    if share is None:
        return element("td", text, **_class(unit), **hover)
    return element("td", text, class_=f"number bar-{round(share * BARS)}", **hover)


BARS = 20
"""The lengths that a bar can have, besides none."""
SHORT = 60
"""Characters of a text that a cell surely shows whole."""


def _class(unit: Unit) -> dict[str, str]:
    if not unit.is_text:
        return {"class_": "number"}
    return {"class_": "code"} if unit.is_code else {}


def _totals(table: Table, order: Sequence[int]) -> Iterator[Html]:
    for place, text in zip(order, totals_text(table, order), strict=True):
        yield element("td", text, **_class(table.columns[place].unit))


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
    remarks = " ".join(
        remark for remark in (f"Not drawn: {shares}." if shares else "", plot.note) if remark
    )
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
        _axes(plot), _curves(plot.curves, plot), _marks(plot), _limits(plot), _letters(plot)
    )
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
    for curve in curves:
        points = " ".join(f"{_x(x, plot.x):.5g},{_y(y, plot.y):.5g}" for x, y in curve.points)
        series = "" if curve.series is None else f" {_series(curve.series)}"
        hover = element("title", _limit(curve))
        yield element("polyline", hover, points=points, class_=f"curve {curve.basis}{series}")


def _limits(plot: Plot) -> Iterator[Html]:
    """What the curves are. Below a roof there is no room, but above its slope there is."""
    has_slope = any(not _is_flat(curve) for curve in plot.curves)
    for row, curve in enumerate(plot.curves if has_slope else ()):
        yield element("text", _limit(curve), x=LEFT + 10, y=TOP + 18 + ROW * row, class_="limit")
    for curve in filter(_is_flat, plot.curves):
        x_end, y_end = curve.points[-1]
        x, y = _x(x_end, plot.x) - 4, _y(y_end, plot.y) - 6
        if not has_slope or curve.basis is Basis.PROMISED:
            text = curve.name if has_slope else _limit(curve)
            yield element("text", text, x=x, y=y, class_="limit end")


def _is_flat(curve: Curve) -> bool:
    return curve.points[0][1] == curve.points[-1][1]


def _limit(curve: Curve) -> str:
    """Limit like "bfloat16 989.40 TFLOP/s promised"."""
    return f"{curve.name} {cell_text(curve.limit, curve.unit)} {curve.basis}"


def _series(number: int) -> str:
    return f"series-{number % 4}"


def _marks(plot: Plot) -> Iterator[Html]:
    """The heaviest below, so that every one can be pointed at."""
    heaviest = max((mark.weight for mark in plot.marks), default=0.0)
    for mark in plot.marks:
        share = mark.weight / heaviest if heaviest else 0.0
        radius = max(LEAST_RADIUS, LARGEST_RADIUS * share**0.5)
        yield _shape(
            mark.series, _x(mark.x, plot.x), _y(mark.y, plot.y), radius, _hover(mark, plot)
        )


def _shape(series: int, x: float, y: float, r: float, *children: Html) -> Html:
    """A circle, square, triangle or diamond: series differ by more than colour."""
    class_ = f"mark {_series(series)}"
    if series % 4 == 0:
        return element("circle", *children, cx=x, cy=y, r=r, class_=class_)
    if series % 4 == 1:
        return element(
            "rect", *children, x=x - r, y=y - r, width=2 * r, height=2 * r, class_=class_
        )
    corners = [(0, -1.2), (1.2, 1), (-1.2, 1)] if series % 4 == 2 else CORNERS
    points = " ".join(f"{x + r * dx:.5g},{y + r * dy:.5g}" for dx, dy in corners)
    return element("polygon", *children, points=points, class_=class_)


CORNERS = [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)]


def _hover(mark: Mark, plot: Plot) -> Html:
    lines = (
        mark.name,
        mark.detail,
        mark.place,
        f"{value_text(mark.y, plot.y.scale)} at {value_text(mark.x, plot.x.scale)}",
        f"{format_fraction(mark.weight)} of the time" if mark.weight else "",
        f"{plot.series_title}: {plot.series[mark.series]}",
    )
    return element("title", "; ".join(line for line in lines if line))


def _letters(plot: Plot) -> Iterator[Html]:
    """Each in its mark, or beside it where another letter stands."""
    spots: list[tuple[float, float]] = []
    for mark in plot.listed:
        x, y = _x(mark.x, plot.x), _y(mark.y, plot.y)
        near = [(x + LETTER * dx, y + LETTER * dy) for dx, dy in BESIDE]
        free = (at for at in near if all(_is_apart(at, other) for other in spots))
        place = next(free, near[0])
        spots.append(place)
        yield element("text", mark.symbol, x=place[0], y=place[1], class_="letter")


def _is_apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) >= LETTER - 0.1 or abs(one[1] - other[1]) >= LETTER - 0.1


def _key(plot: Plot) -> Html:
    of_curves = (curve.series for curve in plot.curves if curve.series is not None)
    used = sorted({*(mark.series for mark in plot.marks), *of_curves})
    items = [
        element("li", element("svg", _shape(series, 12, 7, 5), viewBox="0 0 24 14"), " ",
                f"{plot.series_title}: {plot.series[series]}")
        for series in used if series is not None
    ]  # fmt: skip
    for name in Basis:
        if any(curve.basis is name for curve in plot.curves):
            line = _line(0, 7, 24, 7, f"curve {name}")
            items.append(element("li", element("svg", line, viewBox="0 0 24 14"), " ", name))
    return element("ul", *items, class_="key")


def _legend(plot: Plot) -> Html:
    titles = ("", "share", plot.y.scale, plot.x.scale, plot.series_title, "operator", "line", "on")
    numbers = {"share", plot.y.scale, plot.x.scale}
    head = (
        element("th", title, scope="col", **({"class_": "number"} if title in numbers else {}))
        for title in titles
    )
    rows = (
        element(
            "tr",
            element("td", mark.symbol),
            element("td", format_fraction(mark.weight), class_="number"),
            element("td", value_text(mark.y, plot.y.scale), class_="number"),
            element("td", f"{mark.x:.3g}", class_="number"),
            element("td", plot.series[mark.series]),
            element("td", mark.name, class_="code"),
            element("td", mark.place, class_="code"),
            element("td", mark.detail, class_="code"),
        )
        for mark in plot.listed
    )
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", table, class_="wide")
