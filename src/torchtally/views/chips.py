"""The chips that can be simulated, side by side."""

from collections.abc import Sequence

from torchtally.hardware import Chip
from torchtally.views.table import Column, Table, Unit

COLUMNS = (
    Column("name", "chip", Unit.NAME),
    Column("memory_bytes", "memory", Unit.BYTES),
    Column("memory_bandwidth_bytes_per_s", "bandwidth", Unit.BYTE_PER_S),
    Column("bfloat16_flop_per_s", "dense bf16", Unit.FLOP_PER_S),
    Column("usd_per_hour", "per hour", Unit.USD),
    Column("vendor", "vendor", Unit.TEXT),
    Column("architecture", "architecture", Unit.TEXT),
)


def chip_table(chips: Sequence[Chip]) -> Table:
    """One row a chip, in the order given. What no source gives is empty."""
    return Table(
        title="Chips",
        columns=COLUMNS,
        rows=tuple(
            (
                it.name,
                it.memory_bytes,
                it.memory_bandwidth_bytes_per_s,
                it.peaks["bfloat16"].flop_per_s if "bfloat16" in it.peaks else None,
                it.price.usd_per_hour if it.price else None,
                it.vendor,
                it.architecture,
            )
            for it in chips
        ),
        totals=(None,) * len(COLUMNS),
        note="Each number's source is in --json. A price is one offer on one day. "
        "'-': no source gives it, or the chip has no such unit.",
    )
