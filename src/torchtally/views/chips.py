"""The chips that can be simulated: all of them side by side, or all that is known of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from torchtally.chips import Chip, Link, Node, Price
from torchtally.table import Column, Table
from torchtally.units import Unit

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
                chip.name,
                chip.memory_bytes,
                chip.memory_bandwidth_bytes_per_s,
                chip.peaks["bfloat16"].flop_per_s if "bfloat16" in chip.peaks else None,
                chip.price.usd_per_hour if chip.price else None,
                chip.vendor,
                chip.architecture,
            )
            for chip in chips
        ),
        totals=(None,) * len(COLUMNS),
        note="`tally gpus CHIP` gives each number's source. A price is one offer on one day. "
        "'-': no source gives it, or the chip has no such unit.",
    )


class Measure(StrEnum):
    """What the number of a fact is. A renderer picks the prefix."""

    BYTES = "bytes"
    BYTE_PER_S = "bytes/s"
    FLOP_PER_S = "FLOP/s"
    OP_PER_S = "op/s"
    """Of integers: the same rate, which is not one of floating point."""
    HERTZ = "Hz"
    WATTS = "W"
    USD_PER_HOUR = "USD/h"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Fact:
    """One number, and who says so."""

    name: str
    value: float
    measure: Measure
    source: str
    note: str = ""
    is_detail: bool = False
    """It says more about the fact above it."""


def facts(chip: Chip) -> tuple[Fact, ...]:
    """Every number that is known of a chip, each with its source."""
    return (*_of_memory(chip), *_of_compute(chip), *_of_wires(chip), *_of_costs(chip))


def _of_memory(chip: Chip) -> Iterator[Fact]:
    if chip.is_memory_estimated:
        yield _fact(chip, "memory, by its label", "memory_label_bytes", Measure.BYTES)
    else:
        yield _fact(chip, "memory", "memory_bytes", Measure.BYTES)
    if chip.program_memory_bytes is not None:
        yield _fact(
            chip, "visible to a program", "program_memory_bytes", Measure.BYTES, is_detail=True
        )
    yield _fact(chip, "memory bandwidth", "memory_bandwidth_bytes_per_s", Measure.BYTE_PER_S)
    if chip.achieved_bandwidth_bytes_per_s is not None:
        yield _fact(
            chip, "measured", "achieved_bandwidth_bytes_per_s", Measure.BYTE_PER_S, is_detail=True
        )
    if chip.l2_cache_bytes is not None:
        yield _fact(chip, "L2 cache", "l2_cache_bytes", Measure.BYTES)


def _of_compute(chip: Chip) -> Iterator[Fact]:
    if chip.multiprocessors is not None:
        yield _fact(chip, "multiprocessors", "multiprocessors", Measure.COUNT)
    if chip.boost_clock_hz is not None:
        yield _fact(chip, "boost clock", "boost_clock_hz", Measure.HERTZ)
    if chip.tensor_clock_hz is not None:
        yield _fact(chip, "of the tensor rates", "tensor_clock_hz", Measure.HERTZ, is_detail=True)
    for dtype, peak in chip.peaks.items():
        rate = Measure.OP_PER_S if dtype.startswith("int") else Measure.FLOP_PER_S
        yield Fact(f"dense {dtype}", peak.flop_per_s, rate, peak.source, peak.note)
        if peak.sparse_flop_per_s is not None:
            sparse = peak.sparse_flop_per_s
            yield Fact("with 2:4 sparsity", sparse, rate, peak.source, is_detail=True)
        if peak.achieved_flop_per_s is not None:
            achieved = peak.achieved_flop_per_s
            yield Fact("measured", achieved, rate, peak.achieved_source, is_detail=True)


def _of_wires(chip: Chip) -> Iterator[Fact]:
    """Speeds of one direction; a link without a published speed has no number."""
    if chip.link is not None:
        yield from _link(chip.link, chip.source_of("link"))
    if chip.host_link is not None:
        yield from _link(chip.host_link, chip.source_of("host_link"))
    if chip.node is not None:
        yield from _node(chip.node)


def _link(link: Link, source: str, *, is_detail: bool = False) -> Iterator[Fact]:
    speed = link.bytes_per_s_per_direction
    note = f"joins {link.chips} at most" if link.chips else ""
    if speed is not None:
        yield Fact(
            f"{link.name}, each way", speed, Measure.BYTE_PER_S, source, note, is_detail=is_detail
        )


def _node(node: Node) -> Iterator[Fact]:
    yield Fact(f"chips in a {node.name}", node.gpus, Measure.COUNT, node.source)
    if node.network is not None:
        yield from _link(node.network, node.source, is_detail=True)


def _of_costs(chip: Chip) -> Iterator[Fact]:
    if chip.tdp_watts is not None:
        yield _fact(chip, "power", "tdp_watts", Measure.WATTS)
    if chip.price is not None:
        yield _price(chip.price)


def _price(price: Price) -> Fact:
    note = f"in {price.as_of}{', ' if price.note else ''}{price.note}"
    return Fact("price", price.usd_per_hour, Measure.USD_PER_HOUR, price.source, note)


def _fact(chip: Chip, name: str, field: str, measure: Measure, *, is_detail: bool = False) -> Fact:
    value = getattr(chip, field)
    return Fact(name, value, measure, chip.source_of(field), is_detail=is_detail)
