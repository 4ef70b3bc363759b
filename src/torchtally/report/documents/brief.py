"""The brief answer about a run, in at most a kilobyte."""

from typing import Annotated

from torchtally.report.keys import (
    Bytes,
    Count,
    Document,
    DocumentPart,
    Fraction,
    Seconds,
    TokensPerS,
    Usd,
    key,
)


class DearLinePart(DocumentPart, frozen=True):
    where: Annotated[str, key("The line behind a figure")]
    source: str
    seconds: Seconds | None
    bytes_saved: Bytes


class ChangedLinePart(DocumentPart, frozen=True):
    where: str
    present: Annotated[str, key("In which of two runs a line is: both, before, after")]
    seconds_change: Annotated[Seconds | None, key("What the second run takes more")]
    bytes_saved_change: Annotated[Bytes, key("Saved for the backward pass, second run less first")]


class SinceLastRunPart(DocumentPart, frozen=True):
    command: Annotated[str, key("What a budget is for, or a run was of: the script, its arguments")]
    seconds_change: Seconds | None
    bytes_change: Annotated[Bytes, key("Of the second run less the first")]
    changed_lines: Annotated[Count, key("Lines of code whose cost changed")]
    lines: list[ChangedLinePart]


class BriefDocument(Document, tag="brief/1", frozen=True):
    """Brief answer about a run, at most 1,024 bytes: `tally run --brief`."""

    chip: str
    claim: str
    peak_reserved_bytes: Bytes
    peak_allocated_bytes: Bytes
    capacity_bytes: Bytes | None
    would_fit: Annotated[list[str], key("Changes, or the smallest chip, with which a run fits")]
    per: str
    step_s: Seconds | None
    low_s: Seconds | None
    high_s: Seconds | None
    tokens_per_s: TokensPerS | None
    mfu: Fraction | None
    thousand_steps_usd: Annotated[Usd | None, key("Of 1,000 steps, on all GPUs")]
    lines: list[DearLinePart]
    diagnosis: Annotated[str, key("The dearest cause of what a run costs; empty without one")]
    broken_limits: Annotated[list[str], key("Limits that do not hold")]
    doubts: Annotated[list[str], key("What is not certain")]
    since_last: Annotated[
        SinceLastRunPart | None,
        key("What changed since the last run of the same script; null without one"),
    ]
