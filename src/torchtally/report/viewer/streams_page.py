"""Streams and communicators over the step, and what runs at the cursor."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from rich.style import Style
from textual.binding import BindingType
from textual.strip import Strip

from torchtally.ledger import Ledger
from torchtally.report.plain import cut_left
from torchtally.report.viewer.segments import DIM, OF_BOUND, PLAIN, REVERSED, strip
from torchtally.report.viewer.table_view import TableView
from torchtally.report.viewer.time_page import TimePage
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit, format_seconds
from torchtally.views import by
from torchtally.views.lines import line_texts, root_of
from torchtally.views.row_entries import row_entries
from torchtally.views.slices import Stretch
from torchtally.views.tracks import lanes_of, name_of, timed_parts

NETWORK_VIEWS = ("collective", "group", "rank")
LINES_BELOW = 2
MOST_NAME = 36
"""Columns of a stream's name."""
SHADES = " ░▒▓█"
COLUMNS = (
    Column("stream", "stream", Unit.NAME),
    Column("since_s", "since", Unit.SECONDS),
    Column("seconds", "takes", Unit.SECONDS),
    Column("bound", "bound", Unit.WORD),
    Column("operator", "operator", Unit.TEXT),
    Column("line", "line", Unit.LINE),
    Column("source", "source", Unit.TEXT, rank=1),
)


@dataclass(frozen=True, slots=True)
class LaneCourse:
    """What one stream does, and how long it was busy up to each of its operators."""

    name: str
    ledger: Ledger
    stretches: Sequence[Stretch]
    starts_ns: Sequence[int]
    busy_ns: Sequence[int]
    """Before each stretch."""

    def busy_until(self, time_ns: int) -> int:
        """Nanoseconds in which something ran, up to a time."""
        place = bisect_right(self.starts_ns, time_ns) - 1
        if place < 0:
            return 0
        stretch = self.stretches[place]
        return self.busy_ns[place] + min(time_ns, stretch.end_ns) - stretch.start_ns

    def at(self, time_ns: int) -> Stretch | None:
        """What runs then."""
        place = bisect_right(self.starts_ns, time_ns) - 1
        if place >= 0 and time_ns < self.stretches[place].end_ns:
            return self.stretches[place]
        return None

    def before(self, time_ns: int) -> Stretch | None:
        """What runs then, or did last."""
        place = bisect_right(self.starts_ns, time_ns) - 1
        return self.stretches[place] if place >= 0 else None


def lane_courses(ledger: Ledger) -> list[LaneCourse]:
    """Courses of every rank that ran; none where times are unknown."""
    if ledger.roofline is None:
        return []
    courses = []
    for part, begins_s in timed_parts(ledger):
        for lane in lanes_of(part, begins_s):
            durations = (stretch.end_ns - stretch.start_ns for stretch in lane.stretches)
            courses.append(
                LaneCourse(
                    f"{name_of(part)}, {lane.name}",
                    part.ledger,
                    lane.stretches,
                    [stretch.start_ns for stretch in lane.stretches],
                    [0, *accumulate(durations)],
                )
            )
    return courses


class StreamsPage(TimePage):
    """Left and right move through the step; `g` shows collectives, groups and ranks below."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, ledger: Ledger, *, has_colours: bool = True) -> None:
        self.lanes = lane_courses(ledger)
        self.has_colours = has_colours
        self.margin = min(max((len(lane.name) for lane in self.lanes), default=0), MOST_NAME) + 2
        self.root = root_of(ledger.by_line())
        end_ns = max(
            (lane.stretches[-1].end_ns for lane in self.lanes if lane.stretches), default=1
        )
        first_ns = min((lane.starts_ns[0] for lane in self.lanes if lane.starts_ns), default=0)
        super().__init__(ledger, 0, end_ns, first_ns)
        self.views = NETWORK_VIEWS if ledger.total.network_bytes else ()

    @property
    def groupings(self) -> int:
        return 1 + len(self.views)

    @property
    def most_lines(self) -> int:
        return max(len(self.lanes), 1) + LINES_BELOW

    def table(self) -> Table:
        """What runs at the cursor, or a table of collectives."""
        if self.grouping:
            return by(self.ledger, self.views[self.grouping - 1])
        return Table(
            title="What runs",
            columns=COLUMNS,
            rows=tuple(self._row_of(lane) for lane in self.lanes),
            note="" if self.lanes else "The times of this chip are unknown.",
        )

    def _row_of(self, lane: LaneCourse) -> tuple[Cell, ...]:
        stretch = lane.at(self.cursor)
        if stretch is None:
            return (lane.name, None, None, "", "(idle)", "", "")
        first = stretch.entries[0]
        is_waiting = stretch.start_ns <= self.cursor < stretch.met_ns
        return (
            lane.name,
            (self.cursor - stretch.start_ns) / 1e9,
            (stretch.end_ns - stretch.start_ns) / 1e9,
            str(lane.ledger.slot(first).bound),
            f"{first.call.name}{', waits for other ranks' * is_waiting}",
            *line_texts(first.line, self.root),
        )

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """The operators of the line that runs there, where it is this rank's."""
        if self.grouping:
            return
        lane = self.lanes[event.row]
        stretch = lane.at(self.cursor)
        if stretch is None or lane.ledger is not self.ledger:
            self.notify("Nothing of this rank runs there.", markup=False)
            return
        table = event.view.table
        place, source = table.rows[event.row][-2:]
        self.open(f"{place}  {source}", row_entries(self.ledger, "line", table, event.row))

    def chart_line(self, y: int, width: int, height: int) -> Strip:
        rows = max(height - LINES_BELOW, 1)
        if y == height - 2:
            return strip(self._axis(width), width)
        if y == height - 1:
            text = f"  {format_seconds(self.cursor / 1e9)} of {format_seconds(self.high / 1e9)}"
            left_out = len(self.lanes) - rows
            more = f"; {left_out} more streams need a higher terminal" if left_out > 0 else ""
            return strip([(f"{text}, darker: busier{more}", PLAIN)], width)
        if y >= len(self.lanes):
            return Strip.blank(width)
        return self._lane(self.lanes[y], width)

    def _lane(self, lane: LaneCourse, width: int) -> Strip:
        parts = [(f"{cut_left(lane.name, self.margin - 2):{self.margin}}", DIM)]
        at_cursor = self.column_of(self.cursor, width)
        for column, (first, end) in enumerate(self.cells(width)):
            busy_ns = lane.busy_until(end) - lane.busy_until(first)
            shade = SHADES[round(busy_ns / (end - first) * (len(SHADES) - 1))]
            stretch = lane.before(end - 1) if busy_ns else None
            letter = str(lane.ledger.slot(stretch.entries[0]).bound)[0].upper() if stretch else ""
            style = Style(color=OF_BOUND.get(letter), reverse=column == at_cursor or None)
            parts.append((shade if self.has_colours or shade == " " else letter, style))
        return strip(parts, width)

    def _axis(self, width: int) -> list[tuple[str, Style]]:
        cells = self.cells(width)
        left, right = format_seconds(self.first / 1e9), format_seconds(self.end / 1e9)
        marks = list(f"{left}{right:>{max(len(cells) - len(left), 0)}}"[: len(cells)])
        column = self.column_of(self.cursor, width)
        parts = [(" " * self.margin, PLAIN)]
        parts += [
            ("^" if n == column else mark, REVERSED if n == column else DIM)
            for n, mark in enumerate(marks)
        ]
        return parts
