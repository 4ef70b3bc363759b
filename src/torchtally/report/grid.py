"""A table as lines of text: numbers to the left and never cut, texts to the right and cut to fit.

Numbers first, so that texts, of any length, have the rest of the line.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from torchtally.progress import printable
from torchtally.report.plain import cut_apart, cut_left, cut_right, without_ellipsis
from torchtally.report.prose import in_words, remarks
from torchtally.table import Cell, Table
from torchtally.units import FORMATS, Unit, format_count, format_flops

GAP = "  "
INDENT = "  "
LEAST_TEXT = {0: 0, 1: 24, 2: 34, 3: 46}
"""By how many columns of text there are: room that is worth more than another number."""
LINE_AND_SOURCE = 44
"""Room that lines of code get if they need it: 18 for a line's place, and 24 of its source."""
LEAST_CUT = 8
"""Room below which a text is not cut but hidden with its column, the last one first, unless no
other text names the rows."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Which columns of a table are shown in which order, each how wide."""

    table: Table
    widths: Mapping[int, int]
    """By the column's place in the table, from left to right."""
    apart: Mapping[tuple[int, Cell], str]
    """What is shown of texts in whose place a cut would make rows look alike, by the column's
    place and the text."""

    @property
    def hidden(self) -> list[str]:
        """Names of columns for which there is no room."""
        return [
            column.name
            for place, column in enumerate(self.table.columns)
            if place not in self.widths and not column.on_request
        ]

    def cells(self, row: Sequence[Cell], *, nothing: str = "-") -> dict[int, str]:
        """The row's cells as text, each as wide as its column. `nothing` is a missing number."""
        units = self.table.columns
        return {
            place: _fit(
                self.apart.get((place, row[place]), row[place]), units[place].unit, width, nothing
            )
            for place, width in self.widths.items()
        }

    def line(self, row: Sequence[Cell]) -> str:
        return (INDENT + GAP.join(self.cells(row).values())).rstrip()


def layout_of(table: Table, width: int, *, least_text: int = 0) -> TableLayout:
    """Layout of at most `width` columns of a terminal, unless the table's numbers alone are wider.

    Texts get at least `least_text` columns before another number is shown.
    """
    fixed_widths = {
        place: _fixed_width(table, place)
        for place in range(len(table.columns))
        if not _is_flexible(table, place)
    }
    places_shown = _visible_columns(table, fixed_widths, width, least_text)
    fixed = [place for place in places_shown if place in fixed_widths]
    fixed.sort(key=lambda place: table.columns[place].unit is not Unit.NAME)
    flexible = [place for place in places_shown if place not in fixed_widths]
    widths = {place: fixed_widths[place] for place in fixed}
    room = width - len(INDENT) - sum(widths.values()) - len(GAP) * len(fixed)
    texts = _flexible_widths(table, flexible, max(room, 1))
    while _is_stub(table, texts) and (len(flexible) > 1 or _has_name(table, fixed)):
        flexible.pop()
        texts = _flexible_widths(table, flexible, max(room, 1))
    return TableLayout(table, widths | texts, _told_apart(table, widths | texts, flexible))


def _is_stub(table: Table, widths: Mapping[int, int]) -> bool:
    """Whether a text would be cut to so little that it says nothing."""
    return any(width < min(_text_width(table, place), LEAST_CUT) for place, width in widths.items())


def _has_name(table: Table, places: Iterable[int]) -> bool:
    """Whether rows can be told apart without another text."""
    return any(table.columns[place].unit is Unit.NAME for place in places)


def table_lines(table: Table, width: int, *, is_brief: bool = False) -> list[Text]:
    """The table, its title first, at most `width` wide unless its numbers alone are wider.

    A brief one has totals only where all rows are shown, and no notes.
    """
    layout = layout_of(table, width)
    header = [column.title for column in table.columns]
    lines = [
        Text(printable(in_words(table.title)), style="bold"),
        Text(layout.line(header), style="dim"),
    ]
    lines += [Text(layout.line(row)) for row in table.rows]
    if not (is_brief and table.left_out) and any(cell is not None for cell in table.totals):
        lines.append(Text(layout.line(labelled_totals(table)), style="bold"))
    if is_brief:
        return [*lines, *_remarks(replace(table, note=""), [], width)]
    return [*lines, *_remarks(table, layout.hidden, width)]


def _told_apart(
    table: Table, widths: Mapping[int, int], flexible: Sequence[int]
) -> dict[tuple[int, Cell], str]:
    """What to show of texts that differ only where they are cut, in rows that else look alike."""
    units = [column.unit for column in table.columns]
    is_whole = all(_text_width(table, place) <= widths[place] for place in flexible)
    if is_whole or len(table.rows) > MOST_ROWS_APART:
        return {}
    texts = [place for place in widths if units[place].is_text]
    alike: dict[tuple[str, ...], list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        shown = tuple(
            without_ellipsis(_fit(row[place], units[place], widths[place], "-")) for place in texts
        )
        alike.setdefault(shown, []).append(row)
    apart: dict[tuple[int, Cell], str] = {}
    for rows in alike.values():
        for place in flexible:
            text_of = {row[place]: cell_text(row[place], units[place]) for row in rows}
            if len(text_of) == 1:
                continue
            short = _cut_apart(text_of.values(), units[place], widths[place])
            apart |= {(place, cell): short[text] for cell, text in text_of.items()}
            break
    return apart


def _cut_apart(texts: Iterable[str], unit: Unit, width: int) -> dict[str, str]:
    if unit not in CUT_LEFT:
        return cut_apart(texts, width)
    short = cut_apart((text[::-1] for text in texts), width)
    return {text[::-1]: shown[::-1] for text, shown in short.items()}


MOST_ROWS_APART = 1000
"""Of longer tables, which a viewer pages through, each text is cut by itself."""
CUT_LEFT = (Unit.PLACE, Unit.LINE)


def _is_flexible(table: Table, place: int) -> bool:
    return table.columns[place].unit.is_code


def _visible_columns(
    table: Table, fixed_widths: Mapping[int, int], width: int, least_text: int
) -> list[int]:
    """The columns there is room for: the highest rank goes first, of equals the last."""
    columns = table.columns
    places = [place for place, column in enumerate(columns) if not column.on_request]
    droppable = sorted(
        (column for column in places if columns[column].rank),
        key=lambda column: columns[column].rank,
    )
    while droppable and _least_width(table, fixed_widths, places, least_text) > width:
        places.remove(droppable.pop())
    return places


def _least_width(
    table: Table, fixed_widths: Mapping[int, int], places: Sequence[int], least_text: int
) -> int:
    """Columns that the numbers take, and the texts at least."""
    numbers = sum(fixed_widths[place] + len(GAP) for place in places if place in fixed_widths)
    texts = [place for place in places if place not in fixed_widths]
    if not texts:
        return len(INDENT) + numbers - len(GAP)
    least = max(LEAST_TEXT[min(len(texts), max(LEAST_TEXT))], least_text)
    if [table.columns[place].name for place in texts] == ["line", "source"]:
        needed = sum(_text_width(table, place) for place in texts) + len(GAP)
        least = max(least, min(needed, LINE_AND_SOURCE))
    return len(INDENT) + numbers + least


def _fixed_width(table: Table, place: int) -> int:
    column = table.columns[place]
    cells = (cell_text(row[place], column.unit) for row in chain(table.rows, [table.totals]))
    return max(len(column.title), *map(len, cells), len("total") * (column.unit is Unit.NAME))


def _flexible_widths(table: Table, places: Sequence[int], room: int) -> dict[int, int]:
    """Every text gets what it needs; where that is too much, the first up to two thirds."""
    needs = {place: _text_width(table, place) for place in places}
    widths: dict[int, int] = {}
    for left, place in zip(range(len(places), 0, -1), places, strict=True):
        rest = sum(
            needs[column] + len(GAP)
            for column in places
            if column not in widths and column != place
        )
        most = room if left == 1 else max(room - rest, room * 2 // 3)
        widths[place] = max(min(needs[place], most), 1)
        room = max(room - widths[place] - len(GAP), 0)
    return widths


def _text_width(table: Table, place: int) -> int:
    cells = (printable(str(row[place] or ""))[:1000] for row in table.rows)
    return max([len(table.columns[place].title), 5, *map(cell_len, cells)])


def _fit(cell: Cell, unit: Unit, width: int, nothing: str) -> str:
    """The cell in so many columns: texts to the left and cut, numbers to the right and whole."""
    if not unit.is_text:
        return (nothing if cell is None else cell_text(cell, unit)).rjust(width)
    text = cell_text(cell, unit)
    if unit is not Unit.NAME:
        text = cut_left(text, width) if unit in CUT_LEFT else cut_right(text, width)
    return text + " " * (width - cell_len(text))


IN_COLUMNS: Mapping[Unit, Callable[[Any], str]] = {
    **FORMATS,
    Unit.FLOPS: lambda flops: format_flops(flops).removesuffix("FLOPs").rstrip(),
    Unit.COUNT: str,
    Unit.HOURS: format_count,
}
"""Where the column's title says the unit, the cell need not."""


def cell_text(cell: Cell, unit: Unit) -> str:
    """A text (so are a column's title and "total"), made safe to print; a number in its unit."""
    if isinstance(cell, str):
        return printable(cell)
    if cell is None:
        return "" if unit.is_text else "-"
    return IN_COLUMNS[unit](cell)


def labelled_totals(table: Table) -> list[Cell]:
    """The totals, with "total" in the first column of text."""
    cells = list(table.totals)
    place = next(n for n, column in enumerate(table.columns) if column.unit.is_text)
    cells[place] = "total"
    return cells


def text_first(table: Table) -> list[int]:
    """The places of the columns, those of text first: where no column has to be left out."""
    columns = table.columns
    return sorted(range(len(columns)), key=lambda place: not columns[place].unit.is_text)


def totals_text(table: Table, order: Sequence[int]) -> list[str]:
    """The totals in this order of columns, with "total" in the first where that is of text."""
    texts = [
        ""
        if table.totals[place] is None
        else cell_text(table.totals[place], table.columns[place].unit)
        for place in order
    ]
    if table.columns[order[0]].unit.is_text:
        texts[0] = "total"
    return texts


def _remarks(table: Table, hidden: Sequence[str], width: int) -> Iterator[Text]:
    for line in wrap(remarks(table, " (--top)"), width):
        yield Text(line, style="dim")
    if hidden:
        text = f"Hidden columns (use --columns or a wider terminal): {', '.join(hidden)}"
        yield from (Text(line, style="dim") for line in wrap(text, width))


def wrap(text: str, width: int, indent: str = INDENT) -> list[str]:
    """Prose on lines of at most `width` columns, indented; no lines for no text."""
    return textwrap.wrap(
        printable(text), max(width, 20), initial_indent=indent, subsequent_indent=indent
    )
