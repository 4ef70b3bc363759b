"""Names, numbers and places of a run as the page has them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torchtally.ledger import Ledger, Line
from torchtally.progress import printable
from torchtally.views.lines import root_of, short_path
from torchtally.views.provenance import Provenances

Columns = dict[str, list[Any]]
Document = dict[str, Any]

MOST_LETTERS = 400
"""Of a name or a line."""
MOST_FRAMES = 12
"""Of the lines that led to an operator."""
MOST_SOURCE_LETTERS = 600_000
"""Of quoted files together; of what is left out, the lines that ran are shown."""


def name_text(text: str) -> str:
    """A stranger's text: without control characters, and not endless."""
    return printable(text[:MOST_LETTERS])


def place_text(line: Any, root: str) -> str:
    return f"{name_text(short_path(line.file, root))}:{line.line}" if line else ""


def steps_of(numbers: Sequence[int]) -> list[int]:
    """The first number, and the difference of each from the one before."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]


class Places:
    """Numbers of the lines, modules and files of a run, given as they are asked for."""

    def __init__(self, ledger: Ledger, table: Provenances) -> None:
        self.ledger, self.table = ledger, table
        self.root = root_of([*table.lines, *ledger.by_line()])
        self._lines: dict[Line, int] = {}
        self._files: dict[str, int] = {}
        self._modules: dict[tuple[str, str], int] = {}

    def line(self, line: Line | None) -> int:
        """-1: none."""
        if line is None:
            return -1
        if line not in self._lines:
            self._files.setdefault(line.file, len(self._files))
            self._lines[line] = len(self._lines)
        return self._lines[line]

    def module(self, name: str, class_name: str) -> int:
        return self._modules.setdefault((name, class_name), len(self._modules))

    def sites(self) -> Columns:
        """Each site's line, innermost line, module, and the lines that led to it."""
        table, trace = self.table, self.ledger.trace
        frames: dict[int, int] = {}

        def stack(numbers: Iterable[Any]) -> list[int]:
            return [frame_number(frame) for frame in numbers]

        def frame_number(frame: Any) -> int:
            if id(frame) not in frames:
                frames[id(frame)] = self.line(
                    Line(frame.file, frame.line, frame.text, frame.is_own)
                )
            return frames[id(frame)]

        return {
            "line": [self.line(line) for line in table.lines],
            "library_line": [self.line(line) for line in table.library_lines],
            "module": [self.module(site.module, site.module_class) for site in trace.sites],
            "stack": [stack(site.frames[:MOST_FRAMES]) for site in trace.sites],
        }

    def lines(self) -> Columns:
        return {
            "file": [self._files[line.file] for line in self._lines],
            "line": [line.line for line in self._lines],
            "text": [name_text(line.text) for line in self._lines],
            "is_own": [int(line.is_own) for line in self._lines],
        }

    def modules(self) -> Columns:
        return {
            "name": [name_text(name) for name, _ in self._modules],
            "class": [name_text(class_name) for _, class_name in self._modules],
        }

    @property
    def files(self) -> Sequence[str]:
        return tuple(self._files)


def files_document(places: Places, sources: Mapping[str, str]) -> list[Document]:
    """Each file's short name, and its text where it is known and there is room for it."""
    documents, letters = [], 0
    for file in places.files:
        text = sources.get(file)
        letters += len(text or "")
        is_quoted = text is not None and letters <= MOST_SOURCE_LETTERS
        documents.append(
            {
                "name": name_text(short_path(file, places.root)),
                "text": [source_line(line) for line in text.splitlines()]
                if text is not None and is_quoted
                else None,
            }
        )
    return documents


def source_line(line: str) -> str:
    return printable(line.expandtabs(4)[:MOST_LETTERS])
