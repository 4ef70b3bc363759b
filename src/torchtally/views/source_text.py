"""Which files a report quotes, and whether a file still is the one that ran."""

from collections.abc import Iterable, Mapping

from torchtally.ledger import Ledger
from torchtally.trace import Frame
from torchtally.views.provenance import Provenances

MOST_FILES = 24


def quoted_files(table: Provenances) -> list[str]:
    """Python files of lines that cost something, the user's own first, then by time."""
    seconds: dict[tuple[bool, str], float] = {}
    for (row, _), spent in table.spent.items():
        site = table.rows[row].site
        for line in {table.lines[site], table.library_lines[site]}:
            if line is not None and line.file.endswith(".py"):
                key = (not line.is_own, line.file)
                seconds[key] = seconds.get(key, 0.0) + spent.seconds
    ordered = sorted(seconds, key=lambda key: (key[0], -seconds[key], key[1]))
    return [file for _, file in ordered[:MOST_FILES]]


def recorded_lines(ledger: Ledger, files: Iterable[str]) -> dict[str, dict[int, str]]:
    """What the trace has of each of these files: the lines that ran, stripped, by number."""
    lines: dict[str, dict[int, str]] = {file: {} for file in files}
    seen: set[int] = set()
    frame: Frame
    for site in ledger.trace.sites:
        for frame in site.frames:
            if id(frame) not in seen and frame.file in lines:
                seen.add(id(frame))
                lines[frame.file][frame.line] = frame.text
    return lines


def is_what_ran(text: str, recorded: Mapping[int, str]) -> bool:
    """Whether every line that ran stands in the text where it stood then.

    A trace is a stranger's file: without a line that is recorded nothing is quoted.
    """
    lines = text.splitlines()
    told = {number: line for number, line in recorded.items() if line}
    return bool(told) and all(
        0 < number <= len(lines) and lines[number - 1].strip() == line
        for number, line in told.items()
    )
