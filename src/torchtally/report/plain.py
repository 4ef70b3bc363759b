"""Untrusted text (names, source lines, messages) made safe to print."""

from rich.cells import cell_len

from torchtally.progress import printable

ELLIPSIS = "…"
LIMIT = 4000
"""Characters looked at: enough for any terminal's width, and a bound on the work."""


def cut_left(text: str, width: int) -> str:
    """The end of the text, at most `width` columns wide: for paths, whose end says most."""
    return _cut(printable(text[-LIMIT:])[::-1], width)[::-1]


def cut_right(text: str, width: int) -> str:
    """The beginning of the text, at most `width` columns wide."""
    return _cut(printable(text[:LIMIT]), width)


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    kept, used = [], cell_len(ELLIPSIS)
    for char in text:
        used += cell_len(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept) + ELLIPSIS if width > 0 else ""
