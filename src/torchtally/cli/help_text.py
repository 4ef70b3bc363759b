"""Help that fits the terminal: text of our own lines and columns, wrapped where it is too wide."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

COLUMNS = re.compile(r"(\s*\S.*?\s{2,})(\S.*)")
"""A line of two columns: an option or an example, two spaces at least, and what it is."""
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
"""A word of a command, in which a line that goes on would be spaces, or a backslash."""
NARROWEST = 24
"""Characters that a column of text is wrapped to; a narrower one goes below what it explains."""
INDENT = 6
"""Of what goes on below the line it belongs to."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps lines as they were written, as far as they fit."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = super()._fill_text(text, width, indent)
        return "\n".join(fitted(lines, shutil.get_terminal_size().columns))

    def _format_usage(self, usage: str | None, *args: object) -> str:
        text: str = super()._format_usage(usage, *args)  # type: ignore[arg-type]
        width = shutil.get_terminal_size().columns
        lines = (
            line
            for each in text.splitlines()
            for line in (wrapped(each, width, " " * INDENT) if len(each) > width else [each])
        )
        return "\n".join(lines) + "\n\n"


def fitted(text: str, width: int) -> Iterator[str]:
    """The lines of a text, none longer than the width but for words that are."""
    for kind, group in groupby(text.split("\n"), _is_prose):
        lines = list(group)
        if all(len(line) <= width for line in lines):
            yield from lines
        elif kind:
            yield from wrapped(" ".join(lines), width, "")
        else:
            for line in lines:
                yield from [line] if len(line) <= width else _hanging(line, width)


def _is_prose(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(" ")


def _hanging(line: str, width: int) -> Iterator[str]:
    """An indented line: its second column goes on in its own place, or on a line below."""
    indent = " " * (len(line) - len(line.lstrip()) + INDENT - 2)
    columns = COLUMNS.fullmatch(line)
    if columns is None:
        if not line.lstrip().startswith("tally "):
            yield from wrapped(line, width, indent)
            return
        words = QUOTED.sub(lambda word: word[0].replace(" ", "\0"), line)
        lines = [each.replace("\0", " ") for each in wrapped(words, width - 2, indent)]
        yield from (f"{each} \\" for each in lines[:-1])
        yield lines[-1]
        return
    left, right = columns.groups()
    if width - len(left) >= NARROWEST:
        first, *others = textwrap.wrap(right, width - len(left), break_on_hyphens=False)
        yield left + first
        yield from (" " * len(left) + other for other in others)
    else:
        yield from fitted(left.rstrip(), width)
        yield from wrapped(f"{indent}{right}", width, indent)


def wrapped(text: str, width: int, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
