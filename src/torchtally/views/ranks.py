"""What all ranks of a run do together, told from the trace of one of them."""

from torchtally.ledger import Ledger
from torchtally.trace import Role

MOST = 0.5
"""Of the gradients of trained parameters: a group that reduces fewer holds ranks that work on the
same data (tensor parallelism reduces those of its norms)."""


def data_parallel_ranks(ledger: Ledger) -> int | None:
    """How many ranks work on data of their own: those over which most gradients are reduced.

    None for a run of one rank, and where no gradients are reduced. Groups that lie within another
    (experts') add nothing; those that meet in this rank alone (HSDP's two) multiply.
    """
    trace = ledger.trace
    if trace.world.size == 1:
        return None
    trained_bytes = sum(
        storage.requested_bytes
        for storage in trace.storages
        if storage.role is Role.PARAMETER and storage.is_trained
    )
    reduced = ledger.memory.communication.reduced_bytes
    groups = {
        frozenset(trace.groups[group].ranks)
        for group, size in reduced.items()
        if size >= MOST * trained_bytes and group < len(trace.groups)
    }
    outermost = [group for group in groups if not any(group < other for other in groups)]
    ranks = 1
    for group in outermost:
        ranks *= len(group)
    return min(ranks, trace.world.size) if outermost else None
