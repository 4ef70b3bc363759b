"""A finished report: what every format is made from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.report.documents.tables import TableDocument, with_table
from torchtally.report.keys import DocumentPart
from torchtally.report.prose import in_words
from torchtally.table import Table
from torchtally.table.shown import Shown

if TYPE_CHECKING:
    from torchtally.views.plot import Plot


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The terminal, pipe or file that a report is written to."""

    width: int = 80
    is_coloured: bool = False
    is_ascii: bool = False
    """Whether plots are drawn without Braille and box characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Shown):
    """Sentences, plots and tables; with a text or a document of its own where those say more."""

    title: str
    facts: tuple[str, ...] = ()
    """Sentences below the title."""
    plots: "tuple[Plot, ...]" = ()
    tables: tuple[tuple[str, Table], ...] = ()
    """By name, as a document's keys."""
    remarks: tuple[str, ...] = ()
    """Sentences below the tables: what is unknown, or was not counted."""
    text: Callable[[Look], str] | None = None
    """For a terminal; None for plots and tables one after the other."""
    document: Callable[[], DocumentPart] | None = None
    """For programs; None for the tables alone."""
    is_packed: bool = False
    """Whether the document is printed on one line, in as few bytes as it takes."""


def table_report(table: Table) -> Report:
    """A table by itself."""
    return Report(
        title=in_words(table.title),
        tables=(("rows", table),),
        document=lambda: with_table(TableDocument, table),
    )


def is_ascii(encoding: str | None) -> bool:
    """Whether a stream of this encoding cannot be given braille and lines."""
    try:
        "⣿│●".encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False
