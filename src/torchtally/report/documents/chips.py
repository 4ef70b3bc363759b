"""The hardware table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import field

from torchtally.report.keys import (
    Bytes,
    BytesPerS,
    Count,
    Document,
    DocumentPart,
    FlopPerS,
    Hertz,
    Seconds,
    Usd,
    Watts,
    filled,
    key,
)

if TYPE_CHECKING:
    from torchtally.chips import Chip


class PeakRatePart(DocumentPart, frozen=True):
    flop_per_s: Annotated[FlopPerS, key("Reached, or promised by the data sheet")]
    source: str
    sparse_flop_per_s: Annotated[FlopPerS | None, key("Promised for sparse matrices")]
    note: str
    achieved_flop_per_s: Annotated[FlopPerS | None, key("Measured")]
    achieved_source: Annotated[str, key("Where an achieved rate is from")]


class LinkPart(DocumentPart, frozen=True):
    name: str
    bytes_per_s_per_direction: Annotated[BytesPerS | None, key("Of a link, one way")]
    chips: Annotated[Count | None, key("Chips")] = field(name="chip_count")
    has_multicast: Annotated[bool, key("Whether a link's switch adds up and copies")]
    mesh: Annotated[str, key("How links join chips")]
    latency_s: Annotated[Seconds | None, key("Of a link")]


class NodePart(DocumentPart, frozen=True):
    gpus: Count = field(name="chip_count")
    name: str
    source: str
    network_cards: Annotated[Count | None, key("Network cards of a machine")]
    cpu: Annotated[str, key("Of a machine")]
    network: Annotated[LinkPart | None, key("Between machines")]


class OfferPart(DocumentPart, frozen=True):
    usd_per_hour: Usd
    source: str = field(name="price_source")
    as_of: str = field(name="price_as_of")
    note: str = field(name="price_note")


class SiblingPart(DocumentPart, frozen=True):
    chip: str
    reason: str


class OriginPart(DocumentPart, frozen=True):
    name: str
    chip: str
    basis: str


class ChipPart(DocumentPart, frozen=True):
    """Chip of the hardware table. What no source gives is null."""

    name: str
    aliases: Annotated[list[str], key("Other names of a chip")]
    families: Annotated[list[str], key("Family names that mean this chip if no variant is named")]
    driver_names: Annotated[list[str], key("Of a chip, by its driver")]
    vendor: Annotated[str, key("Of a chip")]
    architecture: Annotated[str, key("Of a chip")]
    compute_capability: Annotated[list[int] | None, key("Of a CUDA device: major, minor")]
    multiprocessors: Annotated[Count | None, key("Streaming multiprocessors of the chip")]
    boost_clock_hz: Annotated[Hertz | None, key("Of the multiprocessors")]
    tensor_clock_hz: Annotated[Hertz | None, key("Of the tensor cores, where it differs")]
    l2_cache_bytes: Annotated[Bytes | None, key("Of the chip's L2 cache")]
    memory_bytes: Annotated[Bytes, key("Of the chip's memory, or of it what a plan takes")]
    is_memory_estimated: Annotated[bool, key("Whether the memory for a program is an estimate")]
    memory_label_bytes: Annotated[Bytes | None, key("Of the chip's memory, as its label says")]
    program_memory_bytes: Annotated[Bytes | None, key("What a program can have of its memory")]
    memory_type: Annotated[str, key("Of a chip")]
    memory_bandwidth_bytes_per_s: Annotated[BytesPerS | None, key("Of memory, by the data sheet")]
    achieved_bandwidth_bytes_per_s: Annotated[BytesPerS | None, key("Of memory, by measurement")]
    tdp_watts: Annotated[Watts | None, key("Thermal design power of the chip")]
    usd_per_hour: Annotated[Usd | None, key("Of one GPU for an hour")]
    price_source: Annotated[str | None, key("Where a price is from")]
    price_as_of: Annotated[str | None, key("Date of a price")]
    price_note: Annotated[str | None, key("What a price is for")]
    source: str
    note: str
    dense_peaks_flop_per_s: Annotated[dict[str, FlopPerS], key("Dense rates by dtype")]
    peaks: Annotated[dict[str, PeakRatePart], key("Rates by dtype")]
    link: Annotated[LinkPart | None, key("Between chips of a machine")]
    host_link: Annotated[LinkPart | None, key("Between a chip and its host")]
    node: Annotated[NodePart | None, key("A machine")]
    offers: Annotated[list[OfferPart], key("What sellers ask for a chip")]
    sources: Annotated[dict[str, str], key("Where figures with another source are from")]
    measured_as: Annotated[SiblingPart | None, key("Chip of its family whose measurements count")]
    memory_as: Annotated[SiblingPart | None, key("The same for its memory's measurements")]
    inherited: Annotated[
        dict[str, str],
        key("Chips whose number or measurement is taken, scaled, by the field or dtype it is for"),
    ]
    origins: Annotated[list[OriginPart], key("Where constants of a class of predictions are from")]


class ChipsDocument(Document, tag="chips/1", frozen=True):
    """Hardware table: `tally gpus`."""

    chips: Annotated[list[ChipPart], key("Of the hardware table, or that were searched")]


def chips_document(chips: "Sequence[Chip]") -> ChipsDocument:
    """The hardware table. A number whose source is not the chip's own is named in `sources`."""
    return ChipsDocument(chips=list(map(_chip_part, chips)))


def _chip_part(chip: "Chip") -> ChipPart:
    """One row of the table: all that it says. What no source gives is null."""
    from torchtally.views.chips import origins_of

    price = chip.price
    return filled(
        ChipPart,
        chip,
        price,
        dense_peaks_flop_per_s={dtype: peak.flop_per_s for dtype, peak in chip.peaks.items()},
        origins=origins_of(chip),
        price_source=price and price.source,
        price_as_of=price and price.as_of,
        price_note=price and price.note,
        offers=price.offers if price else (),
    )
