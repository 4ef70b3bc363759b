"""Figures of the student's own script, each as a view of its trace shows it."""

from collections.abc import Callable

from torchtally.chips import chip
from torchtally.ledger import Ledger
from torchtally.timing.roofline import Bound
from torchtally.views import by

GIB, MIB, KIB = 2**30, 2**20, 2**10


def cell(ledger: Ledger, view: str, row: str, column: str, key: str) -> float:
    """The number in a view's row of that name; 0 where the script has no such row."""
    table = by(ledger, view)
    rows = zip(table.column(key), table.column(column), strict=True)
    return float(next((number for name, number in rows if str(name) == row), 0) or 0)


def peak(category: str, unit: float = 1) -> Callable[[Ledger], float]:
    """Bytes that a category holds at the peak, in a unit of so many."""
    return lambda ledger: cell(ledger, "category", category, "bytes", "category") / unit


def largest_storage(ledger: Ledger) -> float:
    """MiB of the largest storage at the peak."""
    return max(map(float, by(ledger, "peak-storage").column("bytes"))) / MIB  # type: ignore[arg-type]


def kind_share(kind: str, column: str) -> Callable[[Ledger], float]:
    """The share of a kind of work, of the column's sum."""

    def share(ledger: Ledger) -> float:
        whole = sum(map(float, by(ledger, "kind").column(column)))  # type: ignore[arg-type]
        return cell(ledger, "kind", kind, column, "kind") / whole

    return share


def bound_share(bound: str) -> Callable[[Ledger], float]:
    """The share of the step's time that is limited by this."""
    return lambda ledger: ledger.by_bound()[Bound(bound)].seconds / ledger.total.seconds


def first_utilisation(ledger: Ledger) -> float:
    """The view's first row."""
    return float(by(ledger, "utilisation").column("peak_share")[0])  # type: ignore[arg-type]


def read_ms(ledger: Ledger) -> float:
    """Milliseconds in which the chip reads all parameters once."""
    return peak("parameters")(ledger) / chip(ledger.trace.chip).memory_bandwidth_bytes_per_s * 1e3
