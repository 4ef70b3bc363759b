"""Lines of a report to scroll through, wrapped anew for each width."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.strip import Strip
from textual.widget import Widget

from torchtally.report.viewer.keys import MOVES
from torchtally.report.viewer.segments import PLAIN, strip


class LinesView(Widget, can_focus=True):
    """What `lines_at` makes for a width. `/` goes to the next line with a text."""

    DEFAULT_CSS = "LinesView { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [*MOVES]

    def __init__(self, lines_at: Callable[[int], Sequence[Text]]) -> None:
        super().__init__()
        self.lines_at = lines_at
        self.first = 0
        self.searched = ""
        self._width, self._lines = 0, list[Text]()

    def lines(self) -> Sequence[Text]:
        width = max(self.size.width, 40)
        if width != self._width:
            self._width, self._lines = width, list(self.lines_at(width))
        return self._lines

    def search(self, text: str) -> None:
        """Scroll to the first line with the text, which is drawn in reverse."""
        self.searched = text.lower()
        for number, line in enumerate(self.lines()):
            if self.searched and self.searched in line.plain.lower():
                self.first = number
                break
        self.action_move(0)

    def action_move(self, by: int) -> None:
        last = max(len(self.lines()) - self.size.height, 0)
        self.first = max(0, min(self.first + by, last))
        self.refresh()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 1, 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def on_resize(self) -> None:
        self.action_move(0)

    def render_line(self, y: int) -> Strip:
        lines, place = self.lines(), self.first + y
        if place >= len(lines):
            return Strip.blank(self.size.width)
        line = lines[place]
        style = Style.parse(str(line.style)) if line.style else PLAIN
        is_found = bool(self.searched) and self.searched in line.plain.lower()
        return strip([(line.plain, style + Style(reverse=is_found or None))], self.size.width)
