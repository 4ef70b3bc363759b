"""How far the memory may be off: the least and the most that a prediction stands for."""

from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.views.summary import ALLOCATOR_ERROR, judge


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Bytes of the device that a run takes in all, as nvidia-smi shows them."""

    low_bytes: int
    """What is reserved less the error of the allocator's model, though no less than what is
    allocated, and the least context. Of a run that ran out, with the request that was refused."""
    likely_bytes: int
    """What is reserved, the context and communicators."""
    high_bytes: int
    """The same with the error of the allocator's model, the most that a context takes, and what
    trials of cuDNN's algorithms find free."""
    capacity_bytes: int | None
    is_open: bool
    """The run ended for want of memory: what would have come after that request is not known."""
    claim: str
    """As `Verdict.claim`."""


def memory_range(ledger: Ledger) -> MemoryRange:
    """Range of the whole run."""
    verdict = judge(ledger)
    nccl_bytes = verdict.communicators.bytes
    refusal = ledger.trace.final_refusal
    allocated_bytes, reserved_bytes = verdict.peak_bytes, verdict.wanted_bytes
    if refusal is not None:
        allocated_bytes = max(allocated_bytes, refusal.allocated_bytes + refusal.requested_bytes)
    least_bytes = max(allocated_bytes, round(reserved_bytes * (1 - ALLOCATOR_ERROR)))
    most_bytes = round(reserved_bytes * (1 + ALLOCATOR_ERROR))
    high_bytes = most_bytes + verdict.context_high_bytes + nccl_bytes
    if verdict.capacity_bytes is not None:
        free_bytes = max(0, verdict.capacity_bytes - high_bytes)
        high_bytes += min(free_bytes, verdict.trial_bytes)
    return MemoryRange(
        low_bytes=least_bytes + verdict.context_low_bytes,
        likely_bytes=verdict.needed_bytes,
        high_bytes=high_bytes,
        capacity_bytes=verdict.capacity_bytes,
        is_open=refusal is not None,
        claim=verdict.claim,
    )
