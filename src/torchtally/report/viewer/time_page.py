"""A page about a course of time: a chart with a cursor above a table of what is there then."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from torchtally.ledger import Ledger
from torchtally.report.viewer.page import ViewerPage
from torchtally.report.viewer.table_view import TableView
from torchtally.table import Table

SETTLED_S = 0.08
"""The table follows when the cursor has stood still so long."""


class CourseChart(Widget):
    """Draws its page's chart; a click puts the cursor there."""

    def __init__(self, page: "TimePage") -> None:
        super().__init__()
        self.page = page

    def render_line(self, y: int) -> Strip:
        return self.page.chart_line(y, self.size.width, self.size.height)

    def on_resize(self) -> None:
        self.page.redraw()

    def on_click(self, event: events.Click) -> None:
        self.page.point_at(event.x, self.size.width)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.page.action_zoom(0.5)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.page.action_zoom(2.0)


class TimePage(ViewerPage):
    """Time is a whole number from `low` to `high`: ticks of a run, nanoseconds of a step."""

    DEFAULT_CSS = "CourseChart { height: 45%; min-height: 3; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "time", key_display="←→"),
        Binding("right", "step(1)", "later", show=False),
        Binding("shift+left", "step(-10)", "10 earlier", show=False),
        Binding("shift+right", "step(10)", "10 later", show=False),
        Binding("plus,equals_sign", "zoom(2.0)", "zoom", key_display="+-"),
        Binding("minus", "zoom(0.5)", "out", show=False),
        Binding("g", "group", "group by"),
    ]
    margin = 0
    """Columns to the left of the course."""

    def __init__(self, ledger: Ledger, low: int, high: int, cursor: int) -> None:
        super().__init__(ledger)
        self.low, self.high = low, max(high, low + 1)
        self.first, self.end = self.low, self.high
        self.cursor = cursor
        self.grouping = 0

    @abstractmethod
    def chart_line(self, y: int, width: int, height: int) -> Strip:
        """A line of the chart."""

    @abstractmethod
    def table(self) -> Table:
        """What is there at the cursor."""

    @property
    @abstractmethod
    def groupings(self) -> int:
        """How many ways there are to group it."""

    def time_at(self, first: int, end: int) -> int:
        """The time that stands for a column of the chart."""
        return first

    @property
    def most_lines(self) -> int | None:
        """Most lines of the chart, where more would stay empty."""
        return None

    def compose(self) -> ComposeResult:
        chart = CourseChart(self)
        chart.styles.max_height = self.most_lines
        yield chart
        yield TableView(self.table())

    def on_mount(self) -> None:
        self._timer = self.set_timer(SETTLED_S, self._show_table, pause=True)

    def cells(self, width: int) -> Sequence[tuple[int, int]]:
        """What of the time each column of the chart is: [first, end), empty where there is more
        room than time.
        """
        count, span = max(width - self.margin, 1), self.end - self.first
        cuts = [self.first + span * n // count for n in range(count + 1)]
        return [(cuts[n], max(cuts[n + 1], cuts[n] + 1)) for n in range(count)]

    def column_of(self, time: int, width: int) -> int:
        """The column of the chart that a time is in, counted from the margin."""
        for column, (first, end) in enumerate(self.cells(width)):
            if first <= time < end:
                return column
        return -1

    def action_step(self, by: int) -> None:
        """Steps to another column; at the edge the chart moves along."""
        width = self.query_one(CourseChart).size.width
        cells = self.cells(width)
        column = max(self.column_of(self.cursor, width), 0)
        target = self.cursor
        if 0 <= column + by < len(cells) and cells[column + by] != cells[column]:
            target = self.time_at(*cells[column + by])
        else:
            target += by * max((self.end - self.first) // len(cells), 1)
        if target == self.cursor:
            target += 1 if by > 0 else -1
        self.go_to(target)

    def go_to(self, time: int) -> None:
        """Put the cursor there, in sight."""
        self.cursor = max(self.low, min(time, self.high - 1))
        if not self.first <= self.cursor < self.end:
            self._show_around(self.end - self.first)
        self.redraw()
        self._timer.stop()
        self._timer = self.set_timer(SETTLED_S, self._show_table)

    def action_zoom(self, factor: float) -> None:
        self._show_around(round((self.end - self.first) / factor))
        self.redraw()

    def _show_around(self, span: int) -> None:
        span = max(min(span, self.high - self.low), min(16, self.high - self.low))
        self.first = max(self.low, min(self.cursor - span // 2, self.high - span))
        self.end = self.first + span

    def point_at(self, x: int, width: int) -> None:
        cells = self.cells(width)
        if 0 <= x - self.margin < len(cells):
            self.go_to(self.time_at(*cells[x - self.margin]))

    def action_group(self) -> None:
        self.grouping = (self.grouping + 1) % self.groupings
        self._show_table()

    def redraw(self) -> None:
        self.query_one(CourseChart).refresh()

    def _show_table(self) -> None:
        self.query_one(TableView).show_table(self.table())
