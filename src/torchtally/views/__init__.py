"""One ledger from many sides. Every table's columns sum to the ledger's totals."""

from importlib import import_module
from pkgutil import iter_modules

from torchtally.chips import Price
from torchtally.errors import UsageError, did_you_mean
from torchtally.ledger import Ledger
from torchtally.table import Table
from torchtally.views.costs import with_costs
from torchtally.views.view import View, all_views

__all__ = ["VIEWS", "View", "by"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

VIEWS = all_views()


def by(ledger: Ledger, key: str, *, own_price: Price | None = None) -> Table:
    """The ledger's reported period (memory: its whole run), grouped; where it has times, with what
    they cost, by the user's own price if given. Raises UsageError for a key that is not in VIEWS.
    """
    view = VIEWS.get(key)
    if view is None:
        raise UsageError(f"Unknown view {key!r}. {did_you_mean(key, VIEWS)}")
    return with_costs(view.table(ledger), ledger, own_price)
