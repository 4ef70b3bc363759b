"""Costs by source line."""

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from torchtally.ledger import (
    Entry,
    Ledger,
    Line,
    Total,
    library_line_of,
    line_of,
    once_per_site,
    own_line_of,
)
from torchtally.table import Cell, Column, LinePlace, Table
from torchtally.units import Unit
from torchtally.views.bottlenecks import bound_cells, bound_columns
from torchtally.views.columns import OF_LINES, cost_table
from torchtally.views.view import view

TEXTS = (Column("line", "line", Unit.LINE), Column("source", "source", Unit.TEXT))
NO_LINE: tuple[Cell, Cell] = ("(no line)", "")


@view("line", "your own lines, or the model's below trainer.train(); backward on its forward line")
def lines(ledger: Ledger) -> Table:
    """Table by the innermost line of the user's own code. A backward operator is on its forward
    line.

    Where one of those lines does nearly all of the step by a library's modules, by the innermost
    line of the model's own code.
    """
    if ledger.delegate is None:
        return own_lines(ledger)
    title = f"By line of the model, all below {short_place(ledger.delegate)} {ledger.delegate.text}"
    table = _table(title.strip(), ledger, ledger.by_line(), line_of)
    return replace(
        table,
        note="That line of yours only calls a library, so these are the lines of your own code or "
        "the library's model that run below it. --by own-line has yours alone.",
    )


@view("own-line", "the lines of your own code, whatever they call")
def own_lines(ledger: Ledger) -> Table:
    """Lines by the innermost one of the user's own code. A backward operator is on its forward
    line.
    """
    return _table("By line of your code", ledger, ledger.by_own_line(), own_line_of)


def short_place(line: Line) -> str:
    return f"{posixpath.basename(line.file)}:{line.line}"


@view(
    "library-line", "the innermost line, whoever wrote it (transformers' model code, for example)"
)
def library_lines(ledger: Ledger) -> Table:
    """Lines by the innermost one whoever wrote it: a library's own model code, for one."""
    title = "By innermost line, libraries' included"
    return _table(title, ledger, ledger.by_library_line(), library_line_of)


def _table(
    title: str, ledger: Ledger, sums: dict[Line | None, Total], key: Callable[[Entry], Line | None]
) -> Table:
    root = root_of(sums)
    bound = bound_cells(ledger, once_per_site(key))
    rows = [(cost, (*line_texts(line, root), *bound(line))) for line, cost in sums.items()]
    return cost_table(title, OF_LINES, (*TEXTS, *bound_columns(ledger)), rows, ledger)


def line_texts(line: Line | None, root: str) -> tuple[Cell, Cell]:
    """LinePlace and source of a line."""
    return NO_LINE if line is None else (place_of(line.file, line.line, root), line.text)


def place_of(file: str, line: int, root: str) -> LinePlace:
    """A line, its file shown as `short_path` has it."""
    return LinePlace(f"{short_path(file, root)}:{line}", file, line)


def root_of(lines: Iterable[Line | None]) -> str:
    """The directory that holds all the user's own among these lines; "" where there is none."""
    return own_root(line.file for line in lines if line is not None and line.is_own)


def own_root(files: Iterable[str]) -> str:
    """The directory that holds all these files; "" where there is none."""
    try:
        return posixpath.commonpath([posixpath.dirname(file) for file in files])
    except ValueError:  # no file at all, or relative names among absolute ones
        return ""


def short_path(file: str, root: str) -> str:
    """The path as a reader knows it: from the user's own directory, or from the package's name."""
    if root and file.startswith(f"{root.rstrip('/')}/"):
        return file[len(root.rstrip("/")) + 1 :]
    return re.sub(r"^.*/(?:site|dist)-packages/", "", file)


def is_behind_libraries(ledger: Ledger) -> bool:
    """Most of the work is done in library code that the user's own lines merely call.

    Then the user's lines (`trainer.train()`) say little, and the libraries' lines more.
    """
    flops = sum(entry.cost.flops for entry in ledger.reported if _is_in_library(entry))
    return 10 * flops > 6 * ledger.total.flops


def _is_in_library(entry: Entry) -> bool:
    frames = entry.site.frames
    return bool(frames) and not frames[0].is_own
