"""The page about a memory snapshot: who holds what at the peak, and what the allocator wastes."""

from collections.abc import Callable, Iterator

from torchtally.ledger import Ledger
from torchtally.profiles.history import EARLIER
from torchtally.report.documents.tables import SnapshotDocument, table_parts
from torchtally.report.explained import page_text
from torchtally.report.report import Report
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit, format_bytes
from torchtally.views import by
from torchtally.views.allocators import allocators
from torchtally.views.categories import categories
from torchtally.views.lines import root_of, short_path
from torchtally.views.summary import reserved_bytes_of

SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
)
"""Tried on the same requests."""
ROWS = 12


def snapshot_report(
    ledger: Ledger,
    predicted: Ledger | None = None,
    on_played: Callable[[float], None] = lambda share: None,
) -> Report:
    """Report of a trace made of a snapshot; beside a simulated run where there is one. `on_played`
    is told which share of the allocator's settings has been tried.
    """
    measured = ledger.trace.measured
    assert measured is not None, "a trace that no snapshot became"
    tables: dict[str, Table] = {
        "categories": categories(ledger),
        "peak-line": by(ledger, "peak-line").top(ROWS),
        "allocator": allocators(ledger, SETTINGS, on_played),
    }
    if predicted is not None:
        tables["predicted"] = beside(ledger, predicted)
    title = f"{measured.file}: {measured.made_by}"
    sentences = tuple(facts(ledger, tables["allocator"]))
    shown = tuple((name, table) for name, table in tables.items() if table.rows)
    return Report(
        title=title,
        facts=sentences,
        tables=shown,
        text=lambda look: page_text(title, sentences, [table for _, table in shown], look),
        document=lambda: SnapshotDocument(
            peak_allocated_bytes=ledger.memory.peak_bytes,
            peak_reserved_bytes=reserved_bytes_of(ledger),
            earlier_bytes=earlier_bytes(ledger),
            tables=table_parts(shown),
        ),
    )


def facts(ledger: Ledger, allocator: Table) -> Iterator[str]:
    trace, memory = ledger.trace, ledger.memory
    reserved = reserved_bytes_of(ledger)
    yield (
        f"{format_bytes(memory.peak_bytes)} allocated at most, {format_bytes(reserved)} reserved; "
        f"{len(trace.ops)} allocations."
    )
    if held := earlier_bytes(ledger):
        yield (
            f"{format_bytes(held)} were held before the history began: their lines are unknown, "
            "and block remainders are left out. Call torch.cuda.memory._record_memory_history() "
            "first, with a larger max_entries if it is full."
        )
        return
    modelled = int(allocator.column("peak_reserved_bytes")[0] or 0)  # under the run's own settings
    if modelled == reserved:
        yield "The same requests give the same segments in our model of the allocator, to the byte."
    else:
        yield (
            f"Our model of the allocator reserves {format_bytes(modelled)} "
            "for the same requests: a history has neither streams that wait for each other nor "
            "emptied caches."
        )


def earlier_bytes(ledger: Ledger) -> int:
    return sum(storage.bytes for storage in ledger.trace.storages if storage.name == EARLIER)


def beside(ledger: Ledger, predicted: Ledger) -> Table:
    """Peaks and what lines hold at them, measured and predicted."""
    pairs: list[tuple[int, int, str]] = [
        (ledger.memory.peak_bytes, predicted.memory.peak_bytes, "peak allocated"),
        (reserved_bytes_of(ledger), reserved_bytes_of(predicted), "peak reserved"),
    ]
    ours, theirs = held_by_line(ledger), held_by_line(predicted)
    lines = sorted({*ours, *theirs}, key=lambda line: -max(ours.get(line, 0), theirs.get(line, 0)))
    pairs += [(ours.get(line, 0), theirs.get(line, 0), f"  {line}") for line in lines[:ROWS]]
    rows: list[tuple[Cell, ...]] = [
        (measured, model, model - measured, what) for measured, model, what in pairs
    ]
    return Table(
        title="At the peak, measured and predicted",
        columns=(
            Column("measured_bytes", "measured", Unit.BYTES),
            Column("predicted_bytes", "predicted", Unit.BYTES),
            Column("off_bytes", "off", Unit.BYTES),
            Column("name", "", Unit.TEXT),
        ),
        rows=tuple(rows),
    )


def held_by_line(ledger: Ledger) -> dict[str, int]:
    """Bytes at the peak by the line that allocated them."""
    places = {op.clock: ledger.trace.sites[op.site].line for op in ledger.trace.ops}
    held: dict[str, int] = {}
    root = root_of(entry.line for entry in ledger.entries)
    for storage, _ in ledger.memory.alive_at_peak:
        frame = None if storage.name == EARLIER else places.get(storage.born)
        text = "(no line)" if frame is None else f"{short_path(frame.file, root)}:{frame.line}"
        held[text] = held.get(text, 0) + storage.bytes
    return held
