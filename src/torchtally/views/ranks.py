"""What all ranks of a run do together, told from the trace of one of them."""

from collections.abc import Mapping

from torchtally.ledger import Ledger
from torchtally.trace import Role

MOST = 0.5
"""Of the gradients of trained parameters: a group that reduces fewer holds ranks that work on the
same data (tensor parallelism reduces those of its norms)."""
NEARLY_ALL = 0.99
"""Flat buffers are padded."""


def data_parallel_ranks(ledger: Ledger) -> int | None:
    """How many ranks work on data of their own: those over which most gradients are reduced.

    None for a run of one rank, and where no gradients are reduced. Groups that lie within another
    (experts') add nothing; those that meet in this rank alone (HSDP's two) multiply, unless one
    reduces some of the other's gradients alone (pipeline stages that share an embedding).
    """
    trace = ledger.trace
    if trace.world.size == 1:
        return None
    trained_bytes = sum(
        storage.requested_bytes
        for storage in trace.storages
        if storage.role is Role.PARAMETER and storage.is_trained
    )
    reduced = {
        frozenset(trace.groups[group].ranks): gradients
        for group, gradients in ledger.memory.communication.reduced.items()
        if sum(gradients.values()) >= MOST * trained_bytes and group < len(trace.groups)
    }
    outermost = [group for group in reduced if not any(group < other for other in reduced)]
    ranks = 1
    for group in outermost:
        if not any(is_part(reduced[group], reduced[other]) for other in outermost):
            ranks *= len(group)
    return min(ranks, trace.world.size) if outermost else None


def is_part(gradients: Mapping[int, float], others: Mapping[int, float]) -> bool:
    """All of them are among the others, which are more."""
    is_less = sum(gradients.values()) < NEARLY_ALL * sum(others.values())
    return is_less and gradients.keys() <= others.keys()
