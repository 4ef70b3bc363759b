"""The text of files that ran, for reports that quote them."""

import os
from typing import TYPE_CHECKING

from torchtally.files.reading import read_bytes

if TYPE_CHECKING:
    from torchtally.ledger import Ledger

MOST_BYTES = 1_000_000
"""Of one file."""


def source_texts(ledger: "Ledger") -> dict[str, str]:
    """Texts by path: of the Python files on this machine in which the recorded lines still stand.

    A trace may be a stranger's, so a file of which it knows no line is not read into a report.
    """
    from torchtally.views.provenance import provenances
    from torchtally.views.source_text import is_what_ran, quoted_files, recorded_lines

    directory = ledger.trace.facts.get("cwd", "")
    files = quoted_files(provenances(ledger))
    texts = {}
    for file, recorded in recorded_lines(ledger, files).items():
        try:
            text = read_bytes(os.path.join(directory, file), MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            continue
        if is_what_ran(text, recorded):
            texts[file] = text
    return texts
