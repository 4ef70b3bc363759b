"""The page about what changed between two runs."""

from torchtally.ledger import Ledger
from torchtally.report.documents.tables import DiffDocument, table_parts
from torchtally.report.prose import in_words
from torchtally.report.report import Report
from torchtally.views.difference import DIFFERENCES, whole

SHOWN = ("category", "line", "module")
ROWS = 10
"""Of each, where nobody asks for another number."""


def difference_report(before: Ledger, after: Ledger, top: int | None = None) -> Report:
    first = whole(before, after)
    tables = [(name, DIFFERENCES[name](before, after).top(top or ROWS)) for name in SHOWN]
    shown, title = (("whole", first), *tables), in_words(first.title)
    return Report(
        title=title, tables=shown, document=lambda: DiffDocument(title, table_parts(shown))
    )
