"""Lines of a screen: text in one style after another, exactly as wide as they are said to be."""

from collections.abc import Iterable
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from torchtally.progress import printable

PLAIN = Style()
BOLD = Style(bold=True)
DIM = Style(dim=True)
REVERSED = Style(reverse=True)
HEADING = Style(dim=True, underline=True)
SORTED = Style(bold=True, underline=True)

OF_BOUND = {"C": "green", "M": "blue", "N": "magenta", "B": "yellow", "S": "white", "O": "red"}
"""Letters of bounds in bars: compute, memory, network, bubble, sleep, overhead."""
OF_CATEGORY = {
    "P": "blue", "O": "cyan", "B": "bright_black", "W": "white", "G": "green", "I": "bright_cyan",
    "A": "yellow", "p": "bright_blue", "C": "magenta", "T": "red", "U": "white",
}  # fmt: skip
"""Letters of what memory is held for, as `views.timeline.initial` gives them."""


def strip(parts: Iterable[tuple[str, Style]], width: int, background: Style = PLAIN) -> Strip:
    """Exactly `width` columns: cut where there is more, filled where there is less."""
    runs = (
        ("".join(text for text, _ in run), style)
        for style, run in groupby(parts, key=lambda part: part[1])
    )
    segments = [Segment(printable(text), style + background) for text, style in runs if text]
    return Strip(segments).adjust_cell_length(width, background)


def letters(text: str, colours: dict[str, str]) -> list[tuple[str, Style]]:
    """A bar of letters, each in the colour of what it stands for."""
    return [
        (char, Style(color=colours[char], bold=True) if char in colours else PLAIN) for char in text
    ]
