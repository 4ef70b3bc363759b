"""What trying changes showed, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.fit.changes import Change
from torchtally.table import Column, Table
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """One run with a change."""

    change: Change
    peak_reserved_bytes: int
    """On about the smallest device that it fits, where it does not fit this one."""
    saved_bytes: int
    """Compared with the same of the unchanged run."""
    fits: bool


COLUMNS = (
    Column("fits", "fits", Unit.NAME),
    Column("peak_reserved_bytes", "peak", Unit.BYTES),
    Column("saved_bytes", "saves", Unit.BYTES),
    Column("change", "change", Unit.TEXT),
)


def results_table(results: Sequence[ChangeResult], needed_bytes: int) -> Table:
    """Those that make it fit first, the smallest change before the larger ones."""
    ordered = sorted(
        results, key=lambda result: (not result.fits, result.change.rank, -result.saved_bytes)
    )
    listed = [result for result in ordered if result.fits or result.saved_bytes > 0]
    return Table(
        title="Changes that were tried, each in its own run",
        columns=COLUMNS,
        rows=tuple(
            (
                "yes" if result.fits else "no",
                result.peak_reserved_bytes,
                result.saved_bytes,
                result.change.text,
            )
            for result in listed
        ),
        totals=(None, needed_bytes, None, "as it is"),
        note="Peaks are reserved bytes of runs to their end; of what does not fit, on a larger "
        "device, the smallest that it fits, to 1 %."
        + (" Changes that save nothing are not listed." if len(listed) < len(results) else ""),
    )
