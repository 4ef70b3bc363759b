"""Time of a period, its rates, and the tokens it generates."""

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, UnsetType, field

from torchtally.report.documents.account import GapPart, LinePart, in_line
from torchtally.report.keys import (
    Bytes,
    Count,
    DocumentPart,
    Flops,
    Fraction,
    Number,
    Seconds,
    TokensPerS,
    filled,
    key,
)

if TYPE_CHECKING:
    from torchtally.ledger import Ledger
    from torchtally.views.throughput import Batch


class BoundPart(DocumentPart, frozen=True):
    seconds: Seconds
    kernel_s: Seconds
    count: Annotated[Count, key("Operators; of memory, storages")]
    flops: Flops
    bytes_read: Bytes
    bytes_written: Bytes


class CalibrationPart(DocumentPart, frozen=True):
    device: str
    date: Annotated[str, key("As 2026-11-21")]
    torch_version: str
    calibrated_share: Annotated[Fraction | None, key("Of the kernels' time, from measurements")]


class SlowHostPart(DocumentPart, frozen=True):
    host: Annotated[str, key("CPU that issues operators")]
    issue_s: Annotated[Seconds, key("Of the host, to issue the operators of a step")]
    step_s: Seconds
    idle_share: Annotated[Fraction, key("Of the step, in which the device waits for its host")]


class OddSizePart(LinePart, frozen=True):
    size: Annotated[Count, key("A tensor's size")]
    next_size: Annotated[Count, key("The size that would not be odd")]
    saved_s: Annotated[Seconds, key("What a change saves of a step")]


class TimePart(DocumentPart, frozen=True):
    chip: str
    step_s: Annotated[Seconds | None, key("Of a step")]
    kernel_s: Annotated[Seconds, key("Of kernels while they run")]
    low_s: Annotated[Seconds | None, key("At least, in nine of ten such predictions")]
    high_s: Annotated[Seconds | None, key("At most, in nine of ten such predictions")]
    basis: Annotated[
        str | None,
        key("What counts in a figure of utilisation; what a predicted time or a rate rests on"),
    ]
    rates_of: Annotated[list[str], key("Chips whose published rates it rests on, its own first")]
    by_bound: Annotated[dict[str, BoundPart], key("Totals by what takes the time")]
    calibrated: Annotated[CalibrationPart | None, key("Calibration that times were corrected by")]
    slow_host: Annotated[SlowHostPart | None, key("With a slower CPU; null if that changes little")]
    untimed: Annotated[list[GapPart], key("Operators without a time")]
    odd_sizes: Annotated[list[OddSizePart], key("Sizes that slow tensor cores")]


class UtilisationPart(DocumentPart, frozen=True):
    key: Annotated[str, key("Of a figure, for programs")]
    name: str
    convention: str = field(name="basis")
    unit: Annotated[str, key("Of the numbers")]
    amount: Annotated[Number, key("FLOPs or bytes, as `unit` says; of a limit, in its unit")]
    per_s: Annotated[Number | None, key("Reached of what `unit` names")]
    peak_per_s: Annotated[Number | None, key("Promised of what `unit` names")]
    of: Annotated[str, key("Which peak a rate is compared with")] = field(name="peak")
    fraction: Annotated[
        Fraction | None, key("Of the peak rate that is promised, what is reached")
    ] = field(name="peak_share")


class PassesPart(DocumentPart, frozen=True):
    count: Count
    flops: Flops
    bytes_read: Bytes
    bytes_written: Bytes
    utilisation: UtilisationPart | None
    seconds: Seconds | UnsetType | None = UNSET
    kernel_s: Seconds | UnsetType | None = UNSET


class GenerationPart(DocumentPart, frozen=True):
    count: Count
    sequences: Annotated[Count, key("Generated together")]
    prefill_tokens: Annotated[Count, key("Of each prompt")]
    decoded: Annotated[Count, key("Passes that generate a token")]
    drafts: Annotated[Count, key("Passes of a smaller model that drafts")]
    first_token_s: Annotated[Seconds | None, key("Until the first token")]
    token_s: Annotated[Seconds | None, key("Of a token on average")]
    first_s: Annotated[Seconds | None, key("Of the first token after the prompt's")]
    last_s: Annotated[Seconds | None, key("Of the last token")]
    tokens_per_s: Annotated[TokensPerS | None, key("Tokens per second, of all ranks")]
    cache_bytes: Annotated[Bytes, key("Of keys and values that a generation keeps")]
    cache_bytes_per_token: Annotated[Number, key("By which the cache grows, on average")]
    prefill: Annotated[PassesPart, key("The passes that read the prompt")]
    decode: Annotated[PassesPart, key("The passes that generate one token each")]


class BatchPart(DocumentPart, frozen=True):
    size: Annotated[Count, key("How many there are in a step")] = field(name="per_step")
    op: str = field(name="operator")
    file: str | None
    line: Count | None


class ThroughputPart(DocumentPart, frozen=True):
    steps_per_s: Annotated[Number | None, key("Steps per second")]
    tokens_per_s: TokensPerS | None
    samples_per_s: Annotated[Number | None, key("Samples per second, of all ranks")]
    data_parallel_ranks: Annotated[Count | None, key("Ranks that share a batch")]
    token_batch: Annotated[BatchPart | None, key("Tokens of a step, and the operator for them")]
    sample_batch: Annotated[BatchPart | None, key("Samples of a step, and the operator for them")]


def time_part(ledger: "Ledger") -> TimePart | None:
    """Time of the reported period; null where the chip's speed is unknown."""
    from torchtally.views.columns import dearest_first
    from torchtally.views.hosts import slow_host
    from torchtally.views.odd_sizes import odd_sizes
    from torchtally.views.step_time import calibrated_share
    from torchtally.views.time_range import time_range

    roofline = ledger.roofline
    if roofline is None:
        return None
    return filled(
        TimePart,
        time_span := time_range(ledger),
        rates_of=[] if time_span is None else time_span.rates_of,
        chip=roofline.chip.name,
        step_s=ledger.step_s,
        kernel_s=ledger.total.kernel_s,
        by_bound=dict(dearest_first(ledger.by_bound())),
        calibrated=None
        if roofline.calibration is None
        else filled(
            CalibrationPart, roofline.calibration, calibrated_share=calibrated_share(ledger)
        ),
        slow_host=slow_host(ledger),
        untimed=ledger.untimed,
        odd_sizes=[in_line(OddSizePart, odd.line, odd) for odd in odd_sizes(ledger)],
    )


def throughput_part(ledger: "Ledger") -> ThroughputPart | None:
    from torchtally.views.throughput import throughput

    rates = throughput(ledger)
    if rates is None:
        return None
    return filled(
        ThroughputPart,
        rates,
        token_batch=_batch_part(rates.tokens),
        sample_batch=_batch_part(rates.samples),
    )


def _batch_part(batch: "Batch | None") -> BatchPart | None:
    return None if batch is None else filled(BatchPart, batch.line, batch)


def generation_part(ledger: "Ledger") -> GenerationPart | None:
    """Null for a run that generates no tokens. Seconds and rates are null without times."""
    from torchtally.views.generation import generation_figures

    figures = generation_figures(ledger)
    if figures is None:
        return None
    times = {} if figures.is_timed else {"seconds": UNSET, "kernel_s": UNSET}
    prefill, decode = (
        filled(PassesPart, total, utilisation=utilisation, **times)
        for total, utilisation in (
            (figures.prefill, figures.prefill_utilisation),
            (figures.decode, figures.decode_utilisation),
        )
    )
    return filled(GenerationPart, figures, prefill=prefill, decode=decode)
