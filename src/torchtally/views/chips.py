"""The chips that can be simulated: all of them side by side, or all that is known of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtally.chips import Chip, Link, Offer, Price
from torchtally.table import Column, Table
from torchtally.timing.roofline.origins import RateOrigin, origins
from torchtally.units import Unit

COLUMNS = (
    Column("chip", "chip", Unit.NAME),
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
        note="`tally gpus CHIP` gives each number's source. A price is the median of known offers. "
        "'-': no source gives it, or the chip has no such unit.",
    )


@dataclass(frozen=True, slots=True)
class Fact:
    """One number, and who says so."""

    name: str
    value: float
    unit: Unit
    source: str
    note: str = ""
    is_detail: bool = False
    """It says more about the fact above it."""


Fields = tuple[tuple[str, str, Unit, bool], ...]
"""What a number is called, its attribute, its unit, and whether it is a detail."""

MEASURED = "measured"
MEMORY: Fields = (
    ("memory, by its label", "memory_label_bytes", Unit.BYTES, False),
    ("memory", "memory_bytes", Unit.BYTES, False),
    ("visible to a program", "program_memory_bytes", Unit.BYTES, True),
    ("memory bandwidth", "memory_bandwidth_bytes_per_s", Unit.BYTE_PER_S, False),
    (MEASURED, "achieved_bandwidth_bytes_per_s", Unit.BYTE_PER_S, True),
    ("L2 cache", "l2_cache_bytes", Unit.BYTES, False),
    ("multiprocessors", "multiprocessors", Unit.COUNT, False),
    ("boost clock", "boost_clock_hz", Unit.HERTZ, False),
    ("of the tensor rates", "tensor_clock_hz", Unit.HERTZ, True),
)
POWER: Fields = (("power", "tdp_watts", Unit.WATTS, False),)


def facts(chip: Chip) -> tuple[Fact, ...]:
    """Every number that is known of a chip, each with its source."""
    price = () if chip.price is None else _price(chip.price)
    return (*_numbers(chip, MEMORY), *_peaks(chip), *_links(chip), *_numbers(chip, POWER), *price)


def origins_of(chip: Chip) -> tuple[RateOrigin, ...]:
    """Chips on which the constants of each class of predictions were measured."""
    return origins(chip)


def _numbers(chip: Chip, fields: Fields) -> Iterator[Fact]:
    unused = "memory_bytes" if chip.is_memory_estimated else "memory_label_bytes"
    for name, field, unit, is_detail in fields:
        value = getattr(chip, field)
        if value is None or field == unused:
            continue
        owner, is_rate = chip.inherited.get(field), name == MEASURED
        note = f"by {owner}'s" if owner and not is_rate else ""
        label = _measured(chip, field) if is_rate else name
        yield Fact(label, value, unit, chip.source_of(field), note, is_detail=is_detail)


def _measured(chip: Chip, name: str) -> str:
    """What a measured rate is called: a sibling's is said to be one."""
    owner = chip.inherited.get(name)
    return f"by {owner}'s rates" if owner else MEASURED


def _peaks(chip: Chip) -> Iterator[Fact]:
    for dtype, peak in chip.peaks.items():
        unit = Unit.OP_PER_S if dtype.startswith("int") else Unit.FLOP_PER_S
        yield Fact(f"dense {dtype}", peak.flop_per_s, unit, peak.source, peak.note)
        reached = _measured(chip, dtype)
        for name, rate, source in (
            ("with 2:4 sparsity", peak.sparse_flop_per_s, peak.source),
            (reached, peak.achieved_flop_per_s, peak.achieved_source),
        ):
            if rate is not None:
                yield Fact(name, rate, unit, source, is_detail=True)


def _links(chip: Chip) -> Iterator[Fact]:
    """Speeds of one direction; a link without a published speed has no number."""
    yield from _link(chip.link, chip.source_of("link"))
    yield from _link(chip.host_link, chip.source_of("host_link"))
    if chip.node is not None:
        node = chip.node
        yield Fact(f"chips in a {node.name}", node.gpus, Unit.COUNT, node.source)
        yield from _link(node.network, node.source, is_detail=True)


def _link(link: Link | None, source: str, *, is_detail: bool = False) -> Iterator[Fact]:
    if link is not None and (speed := link.bytes_per_s_per_direction) is not None:
        note = f"joins at most {link.chips}" if link.chips else ""
        name = f"{link.name}, each way"
        yield Fact(name, speed, Unit.BYTE_PER_S, source, note, is_detail=is_detail)


def _price(price: Price) -> Iterator[Fact]:
    """The median, and the offers it is of; a single offer is the price itself."""
    if len(price.offers) == 1:
        yield _offer(price.offers[0], "price")
        return
    yield Fact("price", price.usd_per_hour, Unit.USD_PER_HOUR, "the offers below it", price.note)
    for offer in sorted(price.offers, key=lambda offer: offer.usd_per_hour):
        yield _offer(offer, "offer", is_detail=True)


def _offer(offer: Offer, name: str, *, is_detail: bool = False) -> Fact:
    note = f"in {offer.as_of}{', ' if offer.note else ''}{offer.note}"
    return Fact(name, offer.usd_per_hour, Unit.USD_PER_HOUR, offer.source, note, is_detail)
