"""The same requests under other settings of the allocator: what each would reserve."""

from collections.abc import Callable, Sequence

from torchtally.chips import find_chip
from torchtally.ledger import Ledger
from torchtally.memory.allocator import AllocatorSettings, replay
from torchtally.table import Column, Table
from torchtally.units import Unit
from torchtally.views.summary import room_bytes

COLUMNS = (
    Column("peak_allocated_bytes", "allocated", Unit.BYTES),
    Column("peak_reserved_bytes", "reserved", Unit.BYTES),
    Column("unused_bytes", "unused", Unit.BYTES),
    Column("alloc_retries", "retries", Unit.COUNT, rank=1),
    Column("fits", "fits", Unit.NAME),
    Column("settings", "PYTORCH_CUDA_ALLOC_CONF", Unit.TEXT),
)


def allocators(
    ledger: Ledger, texts: Sequence[str], on_played: Callable[[float], None] = lambda share: None
) -> Table:
    """The run as it was, and under each of these settings. Raises UsageError for a wrong one.
    `on_played` is told which share of them has been played.

    Peaks are those without an end of memory; retries and the verdict those on the run's chip.
    """
    trace, device = ledger.trace, ledger.memory.device
    chip = find_chip(trace.chip)
    capacity_bytes = None if chip is None else room_bytes(chip)
    rows = []
    all_texts = list(dict.fromkeys((trace.allocator_settings, *texts)))
    for place, text in enumerate(all_texts):
        on_played(place / len(all_texts))
        settings = AllocatorSettings.parse(text)
        endless = there = replay(trace, device=device, settings=settings)
        is_limited = settings.per_process_memory_fraction is not None
        if capacity_bytes is not None and (
            is_limited or endless.peak_reserved_bytes > capacity_bytes
        ):
            there = replay(trace, device=device, settings=settings, capacity_bytes=capacity_bytes)
        rows.append(
            (
                endless.peak_allocated_bytes,
                endless.peak_reserved_bytes,
                endless.peak_reserved_bytes - endless.peak_allocated_bytes,
                there.alloc_retries,
                "yes" if there.fits else "no",
                text or "(the defaults)",
            )
        )
    return Table(
        title="The allocator under other settings",
        columns=COLUMNS,
        rows=tuple(rows),
        note="The first row is the run as it was. Unused: peak reserved minus peak allocated. "
        "Retries: cached segments released to serve a request on this chip.",
    )
