"""Memory over the run, stacked by what it is held for, and what is alive at the cursor."""

from bisect import bisect_right
from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.strip import Strip

from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.report.viewer.segments import DIM, OF_CATEGORY, PLAIN, REVERSED, strip
from torchtally.report.viewer.table_view import TableView
from torchtally.report.viewer.time_page import TimePage
from torchtally.table import Table
from torchtally.units import format_bytes
from torchtally.views.moments import moment_at
from torchtally.views.peak import lines_at, modules_at, storages_at, title_of
from torchtally.views.row_entries import row_entries
from torchtally.views.timeline import BAR_ORDER, end_of, initial

EIGHTHS = " ▁▂▃▄▅▆▇"
LINES_BELOW = 3
"""The axis, the legend, the cursor's moment."""

TABLES: tuple[Callable[[Ledger, int], Table], ...] = (
    lines_at,
    lambda ledger, tick: modules_at(ledger, tick, is_folded=False),
    lambda ledger, tick: modules_at(ledger, tick, is_folded=True),
    storages_at,
)


class MemoryPage(TimePage):
    """Left and right move through the run, `p` goes to the peak, `g` groups what is alive."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("p", "peak", "peak")]
    margin = 11

    def __init__(self, ledger: Ledger, *, has_colours: bool = True) -> None:
        memory = ledger.memory
        super().__init__(ledger, 0, end_of(ledger), memory.peak_tick)
        self.has_colours = has_colours
        courses = memory.by_category()
        self.courses = {each: courses[each] for each in BAR_ORDER if courses[each].peak_bytes}
        self.top_bytes = max(memory.peak_bytes, 1)
        self.reserved = [
            reserved for reserved in ledger.trace.reserved if reserved.device == memory.device
        ]
        self._drawn: tuple[tuple[int, int, int, int], list[dict[Category, int]]] | None = None

    @property
    def groupings(self) -> int:
        return len(TABLES)

    def table(self) -> Table:
        return TABLES[self.grouping](self.ledger, self.cursor)

    def time_at(self, first: int, end: int) -> int:
        """The fullest moment, as everywhere in a timeline."""
        return self.ledger.memory.timeline.peak_tick_between(first, end)

    def action_peak(self) -> None:
        self.go_to(self.ledger.memory.peak_tick)

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        view = ("line", "module", "repeated-module", "line")[self.grouping]
        table = event.view.table
        cells = {
            column.name: cell
            for column, cell in zip(table.columns, table.rows[event.row], strict=True)
        }
        title = "  ".join(
            str(cells[name]) for name in ("line", "source", "module", "class") if cells.get(name)
        )
        self.open(title, row_entries(self.ledger, view, table, event.row))

    # Drawing.

    def chart_line(self, y: int, width: int, height: int) -> Strip:
        rows = max(height - LINES_BELOW, 1)
        if y < rows:
            return self._row(y, rows, width)
        if y == rows:
            return strip([(" " * self.margin + self._axis(width), DIM)], width)
        if y == rows + 1:
            return strip(self._legend(), width)
        return strip([(self._moment(), PLAIN)], width)

    def _row(self, y: int, rows: int, width: int) -> Strip:
        """Row y from the top: cells that are full of one category, and the uppermost in eighths."""
        label = format_bytes(round(self.top_bytes * (rows - y) / rows)) if y % 2 == 0 else ""
        parts = [(f"{label:>{self.margin - 1}} ", DIM)]
        at_cursor = self.column_of(self.cursor, width)
        for column, held in enumerate(self._columns(width)):
            parts.append(self._cell(held, rows - 1 - y, rows, is_cursor=column == at_cursor))
        return strip(parts, width)

    def _cell(
        self, held: dict[Category, int], row: int, rows: int, *, is_cursor: bool
    ) -> tuple[str, Style]:
        """The cell of a row from the bottom."""
        unit = self.top_bytes / rows
        total = sum(held.values())
        filled = min(max(total / unit - row, 0.0), 1.0)
        middle, below, letter = (row + filled / 2) * unit, 0.0, " "
        for category, size in held.items():
            below += size
            if middle <= below:
                letter = initial(category)
                break
        style = Style(color=OF_CATEGORY.get(letter), reverse=is_cursor or None)
        if filled >= 15 / 16:
            return ("█" if self.has_colours and not is_cursor else letter), style
        block = EIGHTHS[round(filled * 8)] if filled < 15 / 16 else letter
        return block, style if filled else (REVERSED if is_cursor else PLAIN)

    def _columns(self, width: int) -> list[dict[Category, int]]:
        """Bytes by category at the fullest moment of each column."""
        key = (self.first, self.end, width, 0)
        if self._drawn is None or self._drawn[0] != key:
            ticks = [self.time_at(*cell) for cell in self.cells(width)]
            columns = [
                {category: course.at(tick) for category, course in self.courses.items()}
                for tick in ticks
            ]
            self._drawn = key, columns
        return self._drawn[1]

    def _axis(self, width: int) -> str:
        """Ends of steps, the peak and the cursor."""
        marks = ["-"] * len(self.cells(width))
        ends = self.ledger.trace.step_ends
        if len(ends) < len(marks):
            for number, tick in enumerate(ends):
                column = self.column_of(tick - 1, width)
                if column >= 0:
                    marks[column] = "|"
                    name = f" {number + 1}"
                    if column >= len(name):
                        marks[column - len(name) : column] = name
        for tick, mark in ((self.ledger.memory.peak_tick, "P"), (self.cursor, "^")):
            column = self.column_of(tick, width)
            if column >= 0:
                marks[column] = mark
        return "".join(marks)

    def _legend(self) -> list[tuple[str, Style]]:
        parts: list[tuple[str, Style]] = [("  ", PLAIN)]
        for category in self.courses:
            letter = initial(category)
            parts += [
                (f"{letter} ", Style(color=OF_CATEGORY.get(letter), bold=True)),
                (f"{title_of(category)}  ", DIM),
            ]
        return [*parts, ("| step ends  P peak", DIM)]

    def _moment(self) -> str:
        """The cursor's, in words."""
        tick, memory = self.cursor, self.ledger.memory
        if not self.courses:
            return "  Nothing was put on the device."
        parts = [f"  tick {tick}"]
        moment = moment_at(self.ledger, tick)
        if moment is not None:
            parts.append(str(moment))
        parts.append(f"{format_bytes(memory.timeline.at(tick))} allocated")
        last = bisect_right(self.reserved, tick, key=lambda reserved: reserved.tick) - 1
        if last >= 0:
            parts.append(f"{format_bytes(self.reserved[last].bytes)} reserved")
        if tick == memory.peak_tick:
            parts.append("the peak")
        return ", ".join(parts)
