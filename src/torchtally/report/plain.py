"""Untrusted text (names, source lines, messages) made safe to print."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

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


def cut_apart(
    texts: Iterable[str], width: int, cut: Callable[[str, int], str] = cut_right
) -> dict[str, str]:
    """Each text at most `width` columns wide. Of those that would look alike, what they begin with
    in common is cut first.
    """
    shown = {text: cut(text, width) for text in texts}
    alike: dict[str, list[str]] = {}
    for text, short in shown.items():
        alike.setdefault(without_ellipsis(short), []).append(text)
    for group in alike.values():
        if len(group) == 1 or width < LEAST_APART:
            continue
        common = _common_beginning(group)
        whole = max(map(len, group)) - width + 1  # from where all are shown to their ends
        start = max(min(whole, len(common) - width // 2), 1)
        word = WORD.search(common, start)
        start = word.end() if word else start

        def end(text: str, width: int, start: int = start) -> str:
            return ELLIPSIS + cut_right(text[start:], width - cell_len(ELLIPSIS))

        # Where this tells none apart, as with characters that have no width, nothing would.
        if len({without_ellipsis(end(text, width)) for text in group}) > 1:
            shown |= cut_apart(group, width, end)
    return shown


def _common_beginning(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(char for char, _ in alike)


def without_ellipsis(text: str) -> str:
    """What is left of a text that was cut: the same as of one that ends there."""
    return text.strip(f"{ELLIPSIS} ")


LEAST_APART = 8
"""Columns below which there is no room to show by what texts differ."""
WORD = re.compile(r"[^\w.]+(?=\w)")


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
