"""A finished table as rows to walk through: sorted, filtered, and formatted only where seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from torchtally.report.grid import GAP, INDENT, TableLayout, labelled_totals, layout_of
from torchtally.report.prose import in_words
from torchtally.report.viewer.keys import MOVES
from torchtally.report.viewer.segments import (
    BOLD,
    DIM,
    HEADING,
    OF_BOUND,
    PLAIN,
    REVERSED,
    SORTED,
    letters,
    strip,
)
from torchtally.table import Cell, Table
from torchtally.units import Unit

LINES_AROUND = 3
"""That are not rows: the header, the totals, what is shown."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Order in which rows are shown, and which."""

    column: int | None = None
    """The place of the column sorted by; None: as the table has them."""
    is_ascending: bool = False
    search: str = ""


Arrange = Callable[[Table, Arrangement], Sequence[int]]


def arrange(table: Table, arrangement: Arrangement) -> list[int]:
    """The rows that match, by number, in the order asked for; rows without a value last."""
    rows = [row for row in range(len(table.rows)) if matches(table, row, arrangement.search)]
    return in_order(table, rows, arrangement)


def in_order(table: Table, rows: Sequence[int], arrangement: Arrangement) -> list[int]:
    """These rows sorted as asked for."""
    place = arrangement.column
    if place is None:
        return list(rows)
    told = [row for row in rows if table.rows[row][place] not in (None, "")]
    untold = [row for row in rows if table.rows[row][place] in (None, "")]
    is_descending = not arrangement.is_ascending
    told.sort(key=lambda row: _sort_key(table.rows[row][place]), reverse=is_descending)
    return told + untold


def _sort_key(cell: Cell) -> tuple[bool, float, str]:
    if isinstance(cell, str):
        return True, 0.0, cell.lower()
    return False, float(cell or 0), ""


def matches(table: Table, row: int, search: str) -> bool:
    """Whether any text of the row has the searched one in it, in capitals or not."""
    wanted = search.lower()
    return not wanted or any(
        isinstance(cell, str) and wanted in cell.lower() for cell in table.rows[row]
    )


class TableView(Widget, can_focus=True):
    """Rows of a table with a cursor, in the order that `order_rows` gives; `mark_of` is a letter
    before a row.
    """

    class Chosen(Message):
        """Enter was pressed on a row."""

        def __init__(self, view: "TableView", row: int) -> None:
            super().__init__()
            self.view, self.row = view, row

    DEFAULT_CSS = "TableView { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("enter", "choose", "open"),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort by the previous column", show=False),
        Binding("r", "reverse", "reverse", show=False),
    ]

    def __init__(
        self,
        table: Table,
        *,
        order_rows: Arrange = arrange,
        mark_of: Callable[[int], str] | None = None,
        is_faint: Callable[[int], bool] = lambda row: False,
        bars: dict[str, str] = OF_BOUND,
    ) -> None:
        super().__init__()
        self.table, self.order_rows, self.mark_of = table, order_rows, mark_of
        self.is_faint, self.bars = is_faint, bars
        self.arrangement = Arrangement()
        self.cursor = self.first = 0
        self._layouts: dict[int, TableLayout] = {}
        self.order: Sequence[int] = order_rows(table, self.arrangement)

    @property
    def row(self) -> int | None:
        """The number of the row under the cursor; None where no row is shown."""
        return self.order[self.cursor] if self.order else None

    def show_table(self, table: Table) -> None:
        """Another table in its place, its columns sorted as before where they are the same."""
        if [column.name for column in table.columns] != [c.name for c in self.table.columns]:
            self.arrangement = Arrangement(search=self.arrangement.search)
        self.table = table
        self._layouts.clear()
        self.rearrange()

    def rearrange(self, arrangement: Arrangement | None = None, row: int | None = None) -> None:
        """Order the rows anew; the cursor goes to `row` where that is shown, else stays near."""
        self.arrangement = arrangement or self.arrangement
        self.order = self.order_rows(self.table, self.arrangement)
        if row is not None and row in self.order:
            self.cursor = self.order.index(row)
        self._settle()

    def search(self, text: str) -> None:
        """Only rows with this text."""
        row = self.row
        self.rearrange(
            Arrangement(self.arrangement.column, self.arrangement.is_ascending, text), row
        )

    def go_to(self, row: int) -> None:
        """Put the cursor on a row of the table."""
        if row in self.order:
            self.cursor = self.order.index(row)
            self._settle(centre=True)

    def _settle(self, *, centre: bool = False) -> None:
        """Bring cursor and first row back into bounds, the cursor into sight, and draw."""
        self.cursor = max(0, min(self.cursor, len(self.order) - 1))
        seen = self.rows_seen
        if centre and not self.first <= self.cursor < self.first + seen:
            self.first = self.cursor - seen // 2
        self.first = max(self.cursor - seen + 1, min(self.first, self.cursor))
        self.first = max(0, min(self.first, len(self.order) - seen))
        self.refresh()

    @property
    def margin(self) -> int:
        """Columns to the left of a row: the cursor, and a mark with a space where there are any."""
        return 2 if self.mark_of is None else 4

    @property
    def rows_seen(self) -> int:
        return max(self.size.height - LINES_AROUND, 1)

    # What the keys do.

    def action_move(self, by: int) -> None:
        self.cursor += by
        self._settle()

    def action_page(self, by: int) -> None:
        self.action_move(by * self.rows_seen)

    def action_choose(self) -> None:
        if self.row is not None:
            self.post_message(self.Chosen(self, self.row))

    def action_sort(self, by: int) -> None:
        """The next shown column, of all columns and the table's own order in turn."""
        choices: list[int | None] = [None, *self.layout_at(self.size.width).widths]
        place = choices.index(self.arrangement.column) if self.arrangement.column in choices else 0
        column = choices[(place + by) % len(choices)]
        self.sort_by(column)

    def sort_by(self, column: int | None) -> None:
        """Numbers the largest first, texts by the alphabet."""
        is_text = column is not None and self.table.columns[column].unit.is_text
        self.rearrange(Arrangement(column, is_text, self.arrangement.search))
        self.action_move(-len(self.order))

    def action_reverse(self) -> None:
        old = self.arrangement
        self.rearrange(Arrangement(old.column, not old.is_ascending, old.search), self.row)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def on_click(self, event: events.Click) -> None:
        """A row: the cursor goes there, and again opens it. A header: sorted by that column."""
        if event.y == 0:
            place = self._column_at(event.x)
            if place is not None:
                self.action_reverse() if place == self.arrangement.column else self.sort_by(place)
        elif event.y <= self.rows_seen and self.first + event.y - 1 < len(self.order):
            chosen = self.first + event.y - 1
            if chosen == self.cursor and event.chain > 1:
                self.action_choose()
            self.cursor = chosen
            self._settle()

    def _column_at(self, x: int) -> int | None:
        left = self.margin
        for place, width in self.layout_at(self.size.width).widths.items():
            if left <= x < left + width:
                return place
            left += width + len(GAP)
        return None

    # Drawing.

    def layout_at(self, width: int) -> TableLayout:
        """Which columns there is room for."""
        if width not in self._layouts:
            room = width - self.margin + len(INDENT)
            self._layouts = {width: layout_of(self.table, room, least_text=width // 3)}
        return self._layouts[width]

    def on_resize(self) -> None:
        self._settle()

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if not width or y >= height:
            return Strip.blank(width)
        layout = self.layout_at(width)
        if y == 0:
            return self._header(layout, width)
        if y == height - 1:
            return strip([(self.status(layout), DIM)], width)
        if y == height - 2:
            return self._totals(layout, width)
        place = self.first + y - 1
        if place >= len(self.order):
            return Strip.blank(width)
        return self._row(layout, place, width)

    def _header(self, layout: TableLayout, width: int) -> Strip:
        titles = layout.cells([column.title for column in self.table.columns])
        parts: list[tuple[str, Style]] = [(" " * self.margin, PLAIN)]
        for place, title in titles.items():
            parts += [
                (title, SORTED if place == self.arrangement.column else HEADING),
                (GAP, PLAIN),
            ]
        return strip(parts, width)

    def _totals(self, layout: TableLayout, width: int) -> Strip:
        if all(cell is None for cell in self.table.totals):
            return Strip.blank(width)
        cells = layout.cells(labelled_totals(self.table), nothing="")
        return strip([(" " * self.margin + GAP.join(cells.values()), BOLD)], width)

    def _row(self, layout: TableLayout, place: int, width: int) -> Strip:
        row = self.order[place]
        is_current = place == self.cursor
        style = REVERSED if is_current else DIM if self.is_faint(row) else PLAIN
        mark = "" if self.mark_of is None else f"{self.mark_of(row)} "
        parts = [("> " if is_current else "  ", style), (mark, style)]
        for number, (column, text) in enumerate(
            layout.cells(self.table.rows[row], nothing="").items()
        ):
            if number:
                parts.append((GAP, style))
            if self.table.columns[column].unit is Unit.BAR and not is_current:
                parts += letters(text, self.bars)
            else:
                parts.append((text, style))
        return strip(parts, width, REVERSED if is_current else PLAIN)

    def status(self, layout: TableLayout) -> str:
        """How many rows of what, in which order."""
        shown = f"  row {self.cursor + 1 if self.order else 0} of {len(self.order)}"
        parts = [shown]
        if self.arrangement.search:
            parts.append(f"with {self.arrangement.search!r}")
        column = self.arrangement.column
        if column is not None:
            columns = self.table.columns[column]
            how = "smallest" if self.arrangement.is_ascending else "largest"
            order = "" if columns.unit.is_text else f", {how} first"
            parts.append(f"by {columns.title or columns.name}{order}")
        if self.table.note:
            parts.append(in_words(self.table.note).rstrip("."))
        if layout.hidden:
            count = len(layout.hidden)
            parts.append(f"{count} more column{'s' * (count > 1)} in a wider terminal")
        return "; ".join(parts)
