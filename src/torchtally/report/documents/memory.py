"""Memory of a run."""

from typing import TYPE_CHECKING, Annotated

from torchtally.report.documents.account import LinePart, in_line
from torchtally.report.documents.tables import rows_of
from torchtally.report.keys import Bytes, Cells, Count, DocumentPart, filled, key

if TYPE_CHECKING:
    from torchtally.ledger import Ledger


class HostStatePart(DocumentPart, frozen=True):
    elements: Annotated[Count, key("Numbers in a tensor, or in several")]
    whole_elements: Annotated[Count, key("The same on all ranks that share them")]
    parameter_bytes: Annotated[Bytes, key("Of parameters on the host")]
    gradient_bytes: Annotated[Bytes, key("Of gradients on the host")]
    optimizer_bytes: Annotated[Bytes, key("Of optimizer state on the host")]


class WorkspacePart(DocumentPart, frozen=True):
    """Device memory outside of tensors, at the peak."""

    name: Annotated[str, key("What it is called")]
    bytes: Annotated[Bytes, key("Of memory, of the thing that the row or part is about")]
    trust: Annotated[str | None, key("How sure a figure is: measured, documented, estimated")]
    source: str | None


class ShortagePart(LinePart, frozen=True):
    requested_bytes: Annotated[Bytes, key("Asked for by the request that was refused")]
    allocated_bytes: Annotated[Bytes, key("In blocks that are in use")]
    reserved_bytes: Annotated[Bytes, key("In the allocator's segments")]
    free_bytes: Annotated[Bytes, key("Left of the chip when a request was refused")]
    module: Annotated[str, key("Path of a module")]
    message: str
    holders: Annotated[list[Cells], key("Of memory, when it ran out")]


class MemoryPart(DocumentPart, frozen=True):
    device: Annotated[str, key("As torch or the driver names it")]
    peak_allocated_bytes: Annotated[Bytes, key("At most, as torch.cuda.max_memory_allocated()")]
    peak_tick: Annotated[Count, key("When the peak was reached: operators run before it")]
    peak_reserved_bytes: Annotated[
        Bytes,
        key(
            "At most, as torch.cuda.max_memory_reserved(); of a run beyond the chip's memory, on "
            "about the smallest device that it fits"
        ),
    ]
    context_bytes: Annotated[Bytes, key("What the CUDA context takes")]
    context_trust: Annotated[str, key("How sure `context_bytes` is")]
    communicators: Annotated[Count, key("Communicators of NCCL")]
    communicator_bytes: Annotated[Bytes, key("What NCCL takes for its communicators")]
    communicator_trust: Annotated[str, key("How sure `communicator_bytes` is")]
    context_low_bytes: Annotated[Bytes, key("What the CUDA context takes at least")]
    context_high_bytes: Annotated[Bytes, key("What the CUDA context takes at most")]
    trial_bytes: Annotated[Bytes, key("What trials of cuDNN's algorithms may take")]
    capacity_bytes: Annotated[Bytes | None, key("What the allocator can have of the chip")]
    fits: Annotated[bool | None, key("Whether it fits the chip; in tables yes, close or no")]
    claim: Annotated[str, key("How sure it is that it fits")]
    refused_requests: Annotated[Count, key("Requests for memory that were refused")]
    at_peak: Annotated[dict[str, Bytes], key("Bytes at the peak by category")]
    workspaces: Annotated[list[WorkspacePart], key("Device memory outside of tensors")]
    out_of_memory: Annotated[ShortagePart | None, key("The request that was refused")]


def memory_part(ledger: "Ledger") -> MemoryPart:
    from torchtally.memory.workspace import KINDS, Trust
    from torchtally.views.summary import judge
    from torchtally.views.workspaces import workspaces_at_peak

    memory, verdict = ledger.memory, judge(ledger)
    return filled(
        MemoryPart,
        verdict,
        device=memory.device,
        peak_allocated_bytes=memory.peak_bytes,
        peak_tick=memory.peak_tick,
        at_peak=dict(memory.at_peak),
        peak_reserved_bytes=verdict.reserved_bytes,
        context_trust=Trust.ESTIMATED,
        communicators=verdict.communicators.communicators,
        communicator_bytes=verdict.communicators.bytes,
        communicator_trust=Trust.ESTIMATED,
        workspaces=[
            filled(WorkspacePart, KINDS.get(name), name=name, bytes=size)
            for name, size in workspaces_at_peak(ledger).most_common()
        ],
        out_of_memory=_shortage_part(ledger),
        refused_requests=len(ledger.trace.refusals),
    )


def _shortage_part(ledger: "Ledger") -> ShortagePart | None:
    """The request that ended the run, and what occupied the memory."""
    from torchtally.views.summary import shortage_of

    shortage = shortage_of(ledger)
    if shortage is None:
        return None
    return in_line(
        ShortagePart,
        shortage.site.line,
        shortage.refusal,
        module=shortage.site.module,
        holders=rows_of(shortage.holders),
    )
