"""A unified diff as edits of texts."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class TextChange:
    """Lines of a file that others replace."""

    first: int
    """From 0: the first line that is replaced, or before which others are inserted."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    """Both without their ends."""

    def is_of(self, lines: Sequence[str]) -> bool:
        """Whether these lines have what is replaced where it is."""
        return tuple(lines[self.first : self.first + len(self.before)]) == self.before


def changes_of(patch: str, folder: str) -> Mapping[str, tuple[TextChange, ...]]:
    """Changes by the files' paths, links followed; paths of the patch are from `folder`.

    The patch is one of `tally fix`: its files have all been there before.
    """
    changes: dict[str, list[TextChange]] = {}
    path = ""
    lines = (line.removesuffix("\r") for line in patch.split("\n"))
    for line in lines:
        if line.startswith("--- a/"):
            path = os.path.realpath(os.path.join(folder, line.removeprefix("--- a/")))
        elif header := HUNK.match(line):
            first, *counts = (int(number or "1") for number in header.groups())
            # Of no line, the number is that of the line before.
            changes.setdefault(path, []).append(hunk(lines, first - (counts[0] > 0), *counts))
    return {path: tuple(each) for path, each in changes.items()}


def hunk(lines: Iterator[str], first: int, old: int, new: int) -> TextChange:
    """The change that the next lines of a patch describe: `old` lines become `new`."""
    before: list[str] = []
    after: list[str] = []
    while len(before) < old or len(after) < new:
        line = next(lines)
        if line[:1] in (" ", "-"):
            before.append(line[1:])
        if line[:1] in (" ", "+"):
            after.append(line[1:])
    return TextChange(first, tuple(before), tuple(after))
