"""One ledger from many sides. Every table's columns sum to the ledger's totals."""

from collections.abc import Callable, Mapping

from torchtally.errors import UsageError
from torchtally.ledger import Ledger
from torchtally.views.categories import categories, peak_lines
from torchtally.views.lines import library_lines, lines
from torchtally.views.modules import modules, repeated_modules
from torchtally.views.operators import kinds, operators, phases
from torchtally.views.table import Cell, Column, Table, Unit

__all__ = ["VIEWS", "Cell", "Column", "Table", "Unit", "by"]

VIEWS: Mapping[str, Callable[[Ledger], Table]] = {
    "line": lines,
    "library-line": library_lines,
    "module": modules,
    "repeated-module": repeated_modules,
    "op": operators,
    "kind": kinds,
    "phase": phases,
    "category": categories,
    "peak-line": peak_lines,
}


def by(ledger: Ledger, key: str) -> Table:
    """The ledger's steady-state step (memory: its whole run), grouped. Raises UsageError for a key
    that is not in VIEWS.
    """
    view = VIEWS.get(key)
    if view is None:
        raise UsageError(f"There is no view by {key!r}. There are: {', '.join(VIEWS)}.")
    return view(ledger)
