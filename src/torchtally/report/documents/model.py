"""The costs of a model."""

from typing import TYPE_CHECKING, Annotated

from msgspec import field

from torchtally.report.documents.account import (
    ConventionPart,
    CoveragePart,
    GapPart,
    NotePart,
    convention_part,
)
from torchtally.report.keys import Bytes, Count, Document, DocumentPart, Flops, Seconds, filled, key

if TYPE_CHECKING:
    from torchtally.views.model_summary import ModelSummary, ModuleNode


class OutsidePart(DocumentPart, frozen=True):
    flops_forward: Flops
    flops_backward: Flops
    flops_recompute: Flops
    bytes_saved: Bytes
    seconds: Seconds | None


class ModulePart(OutsidePart, frozen=True):
    module: str
    class_name: str = field(name="class")
    parameters: Count
    trained_parameters: Count
    own_parameters: Count
    module_outputs: Annotated[list[list[int]], key("Shapes of what a module returns")]


class ModelDocument(Document, tag="model/1", frozen=True):
    """Costs of a model: `tally summary`."""

    model: Annotated[str, key("Class of a model")]
    chip: str
    torch_version: str
    inputs: Annotated[str, key("Of a model or operator: shapes and dtypes")]
    how: Annotated[str, key("In which mode and precision")]
    is_training: Annotated[bool, key("Whether the pass is one of training")]
    parameters: Count
    trained_parameters: Count
    flops_forward: Flops
    flops_backward: Flops
    flops_recompute: Flops
    bytes_saved: Bytes
    model_flops: Annotated[Flops, key("Of products, forward and backward, without recomputation")]
    step_s: Seconds | None
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    context_bytes: Bytes
    capacity_bytes: Bytes | None
    fits: bool | None
    convention: ConventionPart
    modules: list[ModulePart]
    outside: Annotated[OutsidePart, key("What is outside of any module")]
    coverage: CoveragePart
    untimed: list[GapPart]
    notes: list[NotePart]


def model_document(summary: "ModelSummary") -> ModelDocument:
    """All figures, and every module with those of the modules inside it. Unknown ones are null."""
    ledger, verdict = summary.ledger, summary.verdict
    is_timed = ledger.is_timed
    return filled(
        ModelDocument,
        summary,
        verdict,
        ledger,
        ledger.total,
        model=summary.root.facts.class_name,
        chip=ledger.trace.chip,
        torch_version=ledger.trace.torch_version,
        convention=convention_part(ledger),
        peak_allocated_bytes=summary.peak_bytes,
        peak_reserved_bytes=verdict.reserved_bytes,
        modules=[_module_part(node, is_timed) for node in summary.root.walk()],
        outside=filled(OutsidePart, summary.outside, **({} if is_timed else {"seconds": None})),
        notes=ledger.trace.notes,
    )


def _module_part(node: "ModuleNode", is_timed: bool) -> ModulePart:
    return filled(
        ModulePart,
        node,
        node.total,
        node.facts,
        module=node.facts.path,
        own_parameters=node.facts.parameters,
        module_outputs=node.facts.output,
        **({} if is_timed else {"seconds": None}),
    )
