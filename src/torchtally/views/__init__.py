"""One ledger from many sides. Every table's columns sum to the ledger's totals."""

from collections.abc import Callable, Mapping

from torchtally.errors import UsageError
from torchtally.ledger import Ledger
from torchtally.table import Table
from torchtally.views.activations import activation_lines, activation_modules
from torchtally.views.bounds import bounds
from torchtally.views.categories import categories
from torchtally.views.growth import growth
from torchtally.views.lines import library_lines, lines
from torchtally.views.modules import modules, repeated_modules
from torchtally.views.operators import kinds, operators, phases
from torchtally.views.peak import (
    peak_lines,
    peak_modules,
    peak_repeated_modules,
    peak_storages,
)
from torchtally.views.timeline import timeline
from torchtally.views.utilisation import utilisation
from torchtally.views.workspaces import workspaces

__all__ = ["VIEWS", "by"]

VIEWS: Mapping[str, Callable[[Ledger], Table]] = {
    "line": lines,
    "library-line": library_lines,
    "module": modules,
    "repeated-module": repeated_modules,
    "op": operators,
    "kind": kinds,
    "phase": phases,
    "bound": bounds,
    "utilisation": utilisation,
    "category": categories,
    "timeline": timeline,
    "peak-line": peak_lines,
    "peak-module": peak_modules,
    "peak-repeated-module": peak_repeated_modules,
    "peak-storage": peak_storages,
    "activations-line": activation_lines,
    "activations-module": activation_modules,
    "growth": growth,
    "workspace": workspaces,
}


def by(ledger: Ledger, key: str) -> Table:
    """The ledger's steady-state step (memory: its whole run), grouped. Raises UsageError for a key
    that is not in VIEWS.
    """
    view = VIEWS.get(key)
    if view is None:
        raise UsageError(f"There is no view by {key!r}. There are: {', '.join(VIEWS)}.")
    return view(ledger)
