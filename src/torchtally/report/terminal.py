"""Lines of styled text, and tables, as a terminal, a pipe or a log takes them."""

import io
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from torchtally.progress import printable
from torchtally.report.grid import INDENT, table_lines
from torchtally.table import Table


def join(lines: Sequence[Text], is_coloured: bool) -> str:
    """One text, each line with its end; in colour on a terminal. All colours are of our styles."""
    if not is_coloured:
        return "".join(printable(line.plain) + "\n" for line in lines)
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="standard", width=100_000, highlight=False
    )
    for line in lines:
        line.plain = printable(line.plain)
        console.print(line, soft_wrap=True)
    return stream.getvalue()


def table_text(table: Table, *, width: int = 80, is_coloured: bool = False) -> str:
    """A table with its totals."""
    return join(table_lines(table, width), is_coloured)


def prose(text: str, width: int) -> str:
    """A paragraph, its later lines indented."""
    return textwrap.fill(printable(text), width, subsequent_indent=INDENT) + "\n"
