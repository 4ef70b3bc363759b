"""What each row of a view waits for: the bound of most of its time."""

from collections.abc import Callable, Hashable
from typing import TypeVar

from torchtally.ledger import Entry, Ledger
from torchtally.table import Cell, Column
from torchtally.timing.roofline import Bound
from torchtally.units import Unit

Key = TypeVar("Key", bound=Hashable)

BOUND = Column("bound", "bound", Unit.NAME, rank=3)


def bound_columns(ledger: Ledger) -> tuple[Column, ...]:
    """The column, where there are times."""
    return (BOUND,) if ledger.is_timed else ()


def bound_cells(ledger: Ledger, key: Callable[[Entry], Key]) -> Callable[[Key], tuple[Cell, ...]]:
    """Cells of that column for each group; "" where it takes no time."""
    if not ledger.is_timed:
        return lambda group: ()
    bounds = dominant_bounds(ledger, key)
    return lambda group: (str(bounds.get(group, "")),)


def dominant_bounds(ledger: Ledger, key: Callable[[Entry], Key]) -> dict[Key, Bound]:
    """Bound of most of the time, for each group that takes any."""
    return {
        group: max(seconds, key=lambda bound: seconds[bound])
        for group, seconds in seconds_by_bound(ledger, key).items()
    }


def seconds_by_bound(ledger: Ledger, key: Callable[[Entry], Key]) -> dict[Key, dict[Bound, float]]:
    """Seconds of each bound, for each group that takes any time."""
    groups: dict[Key, dict[Bound, float]] = {}
    for entry in ledger.reported:
        slot = ledger.slot(entry)
        if slot.seconds > 0:
            group = groups.setdefault(key(entry), {})
            group[slot.bound] = group.get(slot.bound, 0.0) + slot.seconds
    return groups
