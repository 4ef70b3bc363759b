"""Smallest value from which a step is compute-bound, or has an MFU."""

from typing import TYPE_CHECKING, Annotated

from torchtally.report.keys import (
    Bytes,
    Count,
    Document,
    DocumentPart,
    Fraction,
    Mixed,
    Number,
    Seconds,
    filled,
    key,
)

if TYPE_CHECKING:
    from torchtally.fit.threshold import ThresholdSearch


class StepPointPart(DocumentPart, frozen=True):
    value: Mixed
    failure: str
    step_s: Seconds | None
    mfu: Fraction | None
    compute_share: Annotated[Fraction | None, key("Of the time, in compute-bound kernels")]
    samples_per_s: Number | None
    peak_reserved_bytes: Bytes | None


class ThresholdDocument(Document, tag="threshold/1", frozen=True):
    """Smallest value that is compute-bound or has an MFU: `tally fit --compute-bound`."""

    vary: str
    chip: str
    compute_bound: Annotated[str | None, key("What is to be compute-bound: step, line, module")]
    least_mfu: Annotated[Fraction | None, key("That a step is to have")]
    smallest: Annotated[Count | None, key("The smallest value from which it is so")]
    below: Annotated[Count | None, key("The largest value tried at which it is not yet so")]
    curve: Annotated[list[StepPointPart], key("Values, and what a step takes there")]


def threshold_document(search: "ThresholdSearch", name: str, chip: str) -> ThresholdDocument:
    """The answer, and all values that were run."""
    return ThresholdDocument(
        vary=name,
        chip=chip,
        compute_bound=search.goal.compute_bound,
        least_mfu=search.goal.mfu,
        smallest=search.answer,
        below=search.below,
        curve=[filled(StepPointPart, point) for _, point in sorted(search.points.items())],
    )
