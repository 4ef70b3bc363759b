"""A prediction held against a measured run: peaks, categories and lines as tables."""

from typing import Any

from torchtally.memory.comparison import Comparison, Pair
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit
from torchtally.views.lines import own_root, place_of

NO_LINE = "(block remainders)"


def peaks(comparison: Comparison) -> Table:
    """The peaks of the run and of its steps."""
    rows: list[tuple[Cell, ...]] = [
        ("peak allocated", *cells(comparison.allocated)),
        ("peak reserved", *cells(comparison.reserved)),
    ]
    for number, (allocated, reserved) in enumerate(comparison.steps, start=1):
        rows.append((f"step {number} allocated", *cells(allocated)))
        rows.append((f"step {number} reserved", *cells(reserved)))
    note = (
        "A step's peaks are by the allocator's history, blocks rounded up to 512 bytes: without "
        "remainders too small to split off."
        if comparison.steps
        else ""
    )
    columns = (Column("name", "peaks", Unit.NAME), *numbers())
    return Table("Memory", columns, tuple(rows), note=note)


def categories(comparison: Comparison) -> Table:
    """What the peak is made of, as far as the optimizers tell."""
    return Table(
        title="At the peak of allocated memory, by category",
        columns=(Column("category", "held for", Unit.NAME), *numbers()),
        rows=tuple((str(name).replace("_", " "), *cells(pair)) for name, pair in comparison.held),
        totals=(None, *cells(comparison.allocated)),
        note="The rest: activations, temporaries, workspaces, buffers and batches. Gradients of "
        "an unfinished step are unknown.",
    )


def lines_at_peak(comparison: Comparison) -> Table:
    """What the peak is made of, by the line below which it was allocated."""
    root = own_root(line.file for line, _ in comparison.lines if line.line and is_own(line.file))
    rows = [
        (*cells(pair), place_of(line.file, line.line, root) if line.line else line.file, line.text)
        for line, pair in comparison.lines
    ]
    if comparison.unexplained.measured_bytes or comparison.unexplained.predicted_bytes:
        rows.append((*cells(comparison.unexplained), NO_LINE, ""))
    return Table(
        title="At the peak of allocated memory, by the line that was running",
        columns=(
            *numbers(is_brief=True),
            Column("line", "line", Unit.LINE),
            Column("source", "source", Unit.TEXT),
        ),
        rows=tuple(rows),
        totals=(*cells(comparison.allocated), None, None),
        note="Block remainders too small to split off are charged to no line.",
    )


def is_own(file: str) -> bool:
    return "site-packages" not in file and "dist-packages" not in file


def numbers(*, is_brief: bool = False) -> tuple[Any, ...]:
    """The columns that all tables share. Brief ones make room for texts first."""
    return (
        Column("measured_bytes", "measured", Unit.BYTES),
        Column("predicted_bytes", "predicted", Unit.BYTES),
        Column("off_bytes", "off by", Unit.BYTES, rank=int(is_brief)),
        Column("ratio", "ratio", Unit.FRACTION),
    )


def cells(pair: Pair) -> tuple[int, int, int, float | None]:
    return pair.measured_bytes, pair.predicted_bytes, pair.off_bytes, pair.ratio
