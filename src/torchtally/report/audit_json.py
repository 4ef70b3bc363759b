"""A prediction held against a measured run, as a document for programs."""

from typing import Any

from torchtally.chips import Chip
from torchtally.memory.comparison import Comparison, Pair
from torchtally.report.document import SCHEMA_VERSION
from torchtally.views.audit import cells


def audit_document(comparison: Comparison, chip: Chip) -> dict[str, Any]:
    """For programs. All sizes are bytes; `measured` and `predicted` are the runs themselves."""

    def pair(pair: Pair) -> dict[str, Any]:
        names = ("measured_bytes", "predicted_bytes", "off_bytes", "ratio")
        return dict(zip(names, cells(pair), strict=True))

    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": comparison.verdict.name.lower(),
        "chip": chip.name,
        "tolerance": comparison.tolerance,
        "reserved_tolerance": comparison.reserved_tolerance,
        "failure": comparison.failure,
        "disagreements": list(comparison.disagreements),
        "peak_allocated": pair(comparison.allocated),
        "peak_reserved": pair(comparison.reserved),
        "steps": [
            {"peak_allocated": pair(allocated), "peak_reserved": pair(reserved)}
            for allocated, reserved in comparison.steps
        ],
        "held": {str(name): pair(couple) for name, couple in comparison.held},
        "lines": [
            {"file": line.file, "line": line.line, "text": line.text, **pair(couple)}
            for line, couple in comparison.lines
        ],
        "measured": comparison.measured.to_json(),
        "predicted": comparison.predicted.to_json(),
    }
