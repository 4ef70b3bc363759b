"""The views by name. Each declares its name and its line of help beside its function:

    @view("line", "the lines of your own code")
    def lines(ledger: Ledger) -> Table: ...

Every file of this folder is imported with the package, so a new view is a new function.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.table import Table

SUBJECTS = ("work", "time", "memory")
"""What views are about, in the order of the help."""

Tabulate = Callable[[Ledger], Table]


@dataclass(frozen=True, slots=True)
class View:
    name: str
    summary: str
    """A line of help."""
    subject: str
    table: Tabulate


_views: dict[str, View] = {}


def view(name: str, summary: str, subject: str = "work") -> Callable[[Tabulate], Tabulate]:
    """Register a function of a ledger as a view. Its name must be new, its subject in SUBJECTS."""
    assert subject in SUBJECTS, subject

    def register(table: Tabulate) -> Tabulate:
        assert name not in _views, name
        _views[name] = View(name, summary, subject, table)
        return table

    return register


def all_views() -> dict[str, View]:
    """Every view by its name: in the order of their subjects, then of their names."""
    ordered = sorted(_views.values(), key=lambda view: (SUBJECTS.index(view.subject), view.name))
    return {view.name: view for view in ordered}
