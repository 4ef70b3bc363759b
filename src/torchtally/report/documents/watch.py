"""Lines of a watched training."""

from typing import Annotated

from msgspec import UNSET, UnsetType, field

from torchtally.report.keys import (
    Bytes,
    Count,
    Document,
    DocumentPart,
    Fraction,
    Mixed,
    Number,
    Seconds,
    TokensPerS,
    key,
)


class PredictionPart(DocumentPart, frozen=True):
    step_s: Seconds | None
    tokens_per_s: TokensPerS | None
    mfu: Fraction | None
    peak_bytes: Bytes | None = field(name="peak_allocated_bytes")
    reserved_bytes: Bytes | None = field(name="peak_reserved_bytes")
    file: str | UnsetType | None = UNSET
    chip: str | UnsetType | None = UNSET
    ranks: Annotated[Count | UnsetType | None, key("Processes of a group, one for each GPU")] = (
        UNSET
    )
    tokens: Count | UnsetType | None = UNSET
    mfu_convention: Annotated[str | UnsetType | None, key("What counts in the MFU")] = UNSET


class WatchDocument(Document, tag="watch/2", frozen=True):
    """Line of a watched training: `tally watch`. Which keys there are depends on `kind`."""

    kind: str
    file: str | UnsetType | None = UNSET
    tolerance: Mixed | UnsetType = UNSET
    log: Annotated[str | UnsetType, key("What a watched training writes")] = UNSET
    text: str | UnsetType = UNSET
    step: Count | UnsetType | None = UNSET
    rank: Annotated[Mixed | UnsetType | None, key("Of a process; in tables with its place")] = UNSET
    step_s: Seconds | UnsetType | None = UNSET
    step_s_from: Annotated[str | UnsetType | None, key("How a step's time was read from a log")] = (
        UNSET
    )
    tokens_per_s: TokensPerS | UnsetType | None = UNSET
    mfu: Annotated[Fraction | UnsetType | None, key("Model FLOPs utilisation")] = UNSET
    logged_mfu: Annotated[Fraction | UnsetType | None, key("MFU as the training counts it")] = UNSET
    peak_bytes: Bytes | UnsetType | None = field(default=UNSET, name="peak_allocated_bytes")
    reserved_bytes: Bytes | UnsetType | None = field(default=UNSET, name="peak_reserved_bytes")
    idle_share: Fraction | UnsetType | None = UNSET
    deviation: Annotated[Fraction | UnsetType | None, key("Of a step, above the prediction")] = (
        UNSET
    )
    is_memory: Annotated[bool | UnsetType | None, key("Whether it is memory that deviates")] = UNSET
    slow: Annotated[
        Number | UnsetType | None,
        key("Steps much slower than the median before them; of one step, times that median"),
    ] = UNSET
    waited_s: Annotated[Seconds | UnsetType | None, key("That a step has been waited for")] = UNSET
    usual_s: Annotated[Seconds | UnsetType | None, key("That such a step usually takes")] = UNSET
    observed: Annotated[Count | UnsetType, key("Lines of a log that tell of a step")] = UNSET
    first_step: Annotated[Count | UnsetType | None, key("The first step that was seen")] = UNSET
    last_step: Annotated[Count | UnsetType | None, key("The last step that was seen")] = UNSET
    least_step_s: Annotated[Seconds | UnsetType | None, key("Of the fastest step")] = UNSET
    most_step_s: Annotated[Seconds | UnsetType | None, key("Of the slowest step")] = UNSET
    late: Annotated[Count | UnsetType | None, key("Times that a step was late")] = UNSET
    memory_deviation: Annotated[Fraction | UnsetType | None, key("Memory above prediction")] = UNSET
    predicted: PredictionPart | UnsetType | None = UNSET
