"""Predicted and measured memory."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import field

from torchtally.report.documents.account import LinePart
from torchtally.report.keys import Bytes, Document, DocumentPart, Fraction, Mixed, filled, key

if TYPE_CHECKING:
    from torchtally.chips import Chip
    from torchtally.memory.comparison import Comparison


class PairPart(DocumentPart, frozen=True):
    measured_bytes: Annotated[Bytes, key("Measured on a GPU")]
    predicted_bytes: Annotated[Bytes, key("Predicted")]
    off_bytes: Annotated[Bytes, key("Predicted less measured")]
    ratio: Annotated[Fraction | None, key("Predicted over measured")]


class StepPeaksPart(DocumentPart, frozen=True):
    peak_allocated: PairPart
    peak_reserved: PairPart


class LinePairPart(LinePart, frozen=True):
    measured_bytes: Bytes
    predicted_bytes: Bytes
    off_bytes: Bytes
    ratio: Fraction | None


class AuditDocument(Document, tag="audit/1", frozen=True):
    """Predicted and measured memory: `tally audit`."""

    verdict: Annotated[str, key("within, outside or failed")]
    chip: str
    tolerance: Annotated[Mixed, key("How far a figure may be off")]
    reserved_tolerance: Annotated[Fraction, key("How far reserved memory may be off")]
    failure: str
    disagreements: Annotated[list[str], key("What two runs disagree on")]
    allocated: Annotated[PairPart, key("Of allocated memory")] = field(name="peak_allocated")
    reserved: Annotated[PairPart, key("Of reserved memory")] = field(name="peak_reserved")
    by_step: Annotated[list[StepPeaksPart], key("For each step")]
    held: Annotated[dict[str, PairPart], key("Bytes at the peak by use")]
    lines: list[LinePairPart]
    measured: dict[str, Any]
    predicted: Annotated[dict[str, Any], key("What was predicted")]


class MeasurementsDocument(Document, tag="measurements/1", frozen=True):
    """Two runs to compare again: `tally audit -o`."""

    measured: dict[str, Any]
    predicted: dict[str, Any]


def audit_document(comparison: "Comparison", chip: "Chip") -> AuditDocument:
    """All sizes are bytes; `measured` and `predicted` are the runs themselves."""
    return filled(
        AuditDocument,
        comparison,
        verdict=comparison.verdict.name.lower(),
        chip=chip.name,
        by_step=[
            filled(StepPeaksPart, peak_allocated=allocated, peak_reserved=reserved)
            for allocated, reserved in comparison.steps
        ],
        held=dict(comparison.held),
        lines=[
            filled(LinePairPart, pair, file=line.file, line=line.line, source=line.text)
            for line, pair in comparison.lines
        ],
        measured=comparison.measured.to_json(),
        predicted=comparison.predicted.to_json(),
    )
