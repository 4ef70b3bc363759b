"""What all ranks of a run do together, told from the trace of one of them."""

from collections.abc import Iterable, Mapping

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

    Experts that tokens are sent to are trained on those of all ranks, and their gradients are
    reduced among fewer or none: in a group that they are sent within, what counts is the gradients
    that are reduced at all. It is one of tensor parallelism where more activations are summed.
    """
    trace, communication = ledger.trace, ledger.memory.communication
    if trace.world.size == 1:
        return None
    trained_bytes = sum(
        storage.requested_bytes
        for storage in trace.storages
        if storage.role is Role.PARAMETER and storage.is_trained
    )
    shared_bytes = sum(most_of_each(communication.reduced.values()).values())
    exchanges = [frozenset(trace.groups[group].ranks) for group in communication.exchanged]
    reduced = {}
    for group, gradients in communication.reduced.items():
        ranks, size = frozenset(trace.groups[group].ranks), sum(gradients.values())
        has_experts = any(exchange <= ranks for exchange in exchanges)
        if has_experts and communication.activations.get(group, 0) < size:
            is_most = size >= MOST * shared_bytes
        else:
            is_most = size >= MOST * trained_bytes
        if is_most:
            reduced[ranks] = gradients
    outermost = [group for group in reduced if not any(group < other for other in reduced)]
    number = 1
    for ranks in outermost:
        if not any(is_part(reduced[ranks], reduced[other]) for other in outermost):
            number *= len(ranks)
    return min(number, trace.world.size) if outermost else None


def most_of_each(groups: Iterable[Mapping[int, float]]) -> Mapping[int, float]:
    """Bytes of each gradient in the group that reduces most of it."""
    most: dict[int, float] = {}
    for gradients in groups:
        for gradient, size in gradients.items():
            most[gradient] = max(most.get(gradient, 0.0), size)
    return most


def is_part(gradients: Mapping[int, float], others: Mapping[int, float]) -> bool:
    """All of them are among the others, which are more."""
    is_less = sum(gradients.values()) < NEARLY_ALL * sum(others.values())
    return is_less and gradients.keys() <= others.keys()
