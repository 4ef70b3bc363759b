"""Memory that NCCL takes for a run's communicators, outside of PyTorch's allocator: an estimate."""

from dataclasses import dataclass

from torchtally.chips import Chip, Cluster
from torchtally.ledger import Ledger
from torchtally.timing.network import Algorithm, RankGroup, buffer_bytes
from torchtally.timing.roofline.collectives import Communicators
from torchtally.trace import Call
from torchtally.trace.peers import MESSAGES
from torchtally.work import Kind


@dataclass(frozen=True, slots=True)
class CommunicatorBuffers:
    """NCCL connects ranks when an algorithm first needs it: only what ran has buffers."""

    communicators: int
    """Groups of which something ran; of messages, pairs of ranks."""
    bytes: int


NO_BUFFERS = CommunicatorBuffers(0, 0)


def communicator_buffers(ledger: Ledger, chip: Chip) -> CommunicatorBuffers:
    """Buffers of the whole run, on this chip with its links."""
    ranks = Communicators(ledger.trace.world, ledger.trace.groups)
    ran: dict[tuple[object, object], tuple[RankGroup, Cluster, set[Algorithm]]] = {}
    seen: set[tuple[Call, int]] = set()
    for entry in ledger.entries:
        call, payload_bytes = entry.call, entry.cost.network_bytes
        if entry.kind is not Kind.COMMUNICATION or (call, payload_bytes) in seen:
            continue
        seen.add((call, payload_bytes))
        where = ranks.group_of(call, chip)
        transfer = ranks.transfer(call, payload_bytes, chip)
        if where is None or transfer is None:
            continue
        algorithm = transfer.algorithm
        if algorithm is not None:
            communicator = call.literal("group"), call.literal(MESSAGES.get(call.name, ""))
            ran.setdefault(communicator, (*where, set()))[2].add(algorithm)
    return CommunicatorBuffers(
        len(ran),
        sum(
            buffer_bytes(algorithms, group, cluster) for group, cluster, algorithms in ran.values()
        ),
    )
