"""Places of lines that ran in the text as it is now."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple


class MovedLine(NamedTuple):
    """A line's place now."""

    line: int
    """From 1."""
    is_stale: bool
    """Its text is another than when it ran."""


def moved_lines(before: Sequence[str | None], now: Sequence[str]) -> dict[int, MovedLine]:
    """Places by the line's number when it ran, from 1, aligned by the lines' texts, stripped.

    None in `before` is a line whose text is not known. A line that was edited alone keeps its
    place; one that has gone has none.
    """
    # A text of its own for each line that is not known: it equals no other.
    texts = [f"\0{place}" if text is None else text for place, text in enumerate(before)]
    matcher = SequenceMatcher(None, texts, [text.strip() for text in now], autojunk=False)
    places: dict[int, MovedLine] = {}
    for tag, first, end, there, there_end in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and end - first == there_end - there):
            for place in range(first, end):
                line = there + place - first + 1
                places[place + 1] = MovedLine(line, is_stale=tag == "replace")
    return places


def texts_of(recorded: Mapping[int, str]) -> list[str | None]:
    """The lines of a file of which some are known, by their numbers."""
    return [recorded.get(number) for number in range(1, max(recorded, default=0) + 1)]
