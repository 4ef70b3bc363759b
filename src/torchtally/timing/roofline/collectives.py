"""Collectives: the time of `timing.network`, bound NETWORK.

In a run of several ranks a call names its group, by the number in the trace. Elsewhere it says how
many ranks take part only where its operator takes it; else a full node of the chip is taken, or two
chips where no source says what node it is sold in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchtally.chips import Chip, Cluster
from torchtally.timing.constants import CONTENTION, TIMES_MOVED
from torchtally.timing.network import CollectiveKind, RankGroup, Transfer, collective
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import NOTHING, bound_kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call, Literal, ProcessGroup, World
from torchtally.trace.peers import MESSAGES, ONE_SIDED
from torchtally.work import Cost

KINDS: tuple[tuple[str, CollectiveKind | None], ...] = (
    ("check_for_nan", None),
    ("monitored_barrier", None),  # of gloo: on the host
    ("barrier", "barrier"),
    ("reduce_scatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("notify_dispatch", "all_gather"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("p2p_ops", "send"),
    ("send", "send"),
    ("recv", "send"),
)
"""What an operator does, by the first of these that its name has."""

SENDS = frozenset([*ONE_SIDED, "symm_mem.barrier"])
"""Copies and signals over the link of two GPUs, timed as NCCL's own: a barrier is a signal to every
other GPU of the node at once."""

DEEP_EP = "deep_ep."
"""Exchanges of tokens with experts, by kernels that store into the other GPUs' memory."""

PARTNER = {**MESSAGES, **ONE_SIDED}
"""By operator between two ranks: the argument that names the other."""


@dataclass(frozen=True, slots=True)
class Communicators:
    """Who communicates in a run: all ranks, and the groups of the traced one by number."""

    world: World
    groups: Sequence[ProcessGroup]

    def group_of(self, call: Call, chip: Chip) -> tuple[RankGroup, Cluster] | None:
        """Those of the group that the call names, and the GPUs that they are on."""
        number = call.literal("group")
        if not isinstance(number, int) or number >= len(self.groups):
            return None
        cluster = Cluster(chip, self.world.size, self.world.gpus_per_node)
        ranks = self.groups[number].ranks
        peer = call.literal(PARTNER.get(call.name, ""))
        if isinstance(peer, int) and 0 <= peer < len(ranks):
            ranks = (self.world.rank, ranks[peer])
        return RankGroup.of_ranks(ranks, self.world.gpus_per_node), cluster

    def transfer(self, call: Call, payload_bytes: int, chip: Chip) -> Transfer | None:
        """What the group does together; None where the call names none that is known.

        Raises UsageError as `collective` does.
        """
        kind, where = kind_of(call.name), self.group_of(call, chip)
        if kind is None or where is None:
            return None
        group, cluster = where
        staged = is_staged(call)
        exchange = self.exchange(call, payload_bytes) if kind == "all_to_all" else None
        if exchange is None:
            return collective(kind, payload_bytes, group, cluster, is_staged=staged)
        if len(exchange.peers) == 1:
            pair = RankGroup.of_ranks((self.world.rank, *exchange.peers), self.world.gpus_per_node)
            return collective("send", exchange.bytes, pair, cluster, is_staged=staged)
        even_bytes = exchange.bytes * group.ranks // max(1, group.ranks - 1)
        return collective(kind, even_bytes, group, cluster, is_staged=staged)

    def exchange(self, call: Call, payload_bytes: int) -> "PartsSent | None":
        """Parts of an all-to-all whose ranks get parts of different sizes; None of an even one."""
        number = call.literal("group")
        assert isinstance(number, int), number
        ranks = self.groups[number].ranks
        ways = [
            shares
            for name in ("input_split_sizes", "output_split_sizes")
            if (shares := shares_of(call.literal(name), len(ranks)))
        ]
        if not ways or all(len(set(shares)) == 1 for shares in ways):
            return None
        others = [place for place, rank in enumerate(ranks) if rank != self.world.rank]
        busiest = max(ways, key=lambda shares: sum(shares[place] for place in others))
        size = round(payload_bytes * sum(busiest[place] for place in others))
        return PartsSent(size, frozenset(ranks[place] for place in others if busiest[place]))


class PartsSent(NamedTuple):
    """What a rank sends to others, or gets from them, whichever is more."""

    bytes: int
    peers: frozenset[int]
    """Those that have a part in it."""


def shares_of(splits: Literal, ranks: int) -> tuple[float, ...] | None:
    """Shares of the whole for each rank; None where they are not said."""
    if not isinstance(splits, tuple) or len(splits) != ranks:
        return None
    rows = [part for part in splits if isinstance(part, int)]
    whole = sum(rows)
    return tuple(part / whole for part in rows) if whole and len(rows) == ranks else None


def collective_kernel(
    call: Call, cost: Cost, chip: Chip, ranks: Communicators | None = None
) -> Kernel:
    """Raises UsageError where no source gives the speed of the chip's link, nor of its host's."""
    kind = kind_of(call.name)
    is_empty = not (cost.network_bytes or cost.bytes)
    if kind is None or (is_empty and kind != "barrier" and call.name not in SENDS):
        return NOTHING
    transfer = None if ranks is None else ranks.transfer(call, cost.network_bytes, chip)
    if transfer is None:
        where, staged = ranks_of(call, chip), is_staged(call)
        transfer = collective(kind, cost.network_bytes, *where, is_staged=staged)
    bandwidth = bandwidth_bytes_per_s(chip)
    kernel = bound_kernel(
        memory_s=cost.bytes / bandwidth, network_s=transfer.seconds, overhead_s=0.0
    )
    # How many channels a message takes is not known here; a copy takes none.
    if kind == "send" or not kernel.seconds or chip.multiprocessors is None:
        return kernel
    # One block for each channel (ncclLaunchKernel in src/enqueue.cc).
    return replace(
        kernel,
        multiprocessor_share=max(LEAST_SHARE, transfer.channels / chip.multiprocessors),
        bandwidth_share=TIMES_MOVED * transfer.sent_bytes / kernel.seconds / bandwidth,
    )


LEAST_SHARE = 1 - 1 / (1 + CONTENTION)


def is_staged(call: Call) -> bool:
    """Whether it goes through NCCL's buffers."""
    return call.name not in SENDS and not call.name.startswith(DEEP_EP)


def kind_of(operator: str) -> CollectiveKind | None:
    """What the ranks do together in this operator; None for what sends nothing between GPUs."""
    if operator in SENDS:
        return "send"
    name = operator.partition(".")[2]
    return next(kind for part, kind in KINDS if part in name)


def ranks_of(call: Call, chip: Chip) -> tuple[RankGroup, Cluster]:
    """Those that the call names, or those of a node, side by side."""
    room = chip.node.gpus if chip.node else None
    named = call.literal("group_size")
    is_count = isinstance(named, int) and not isinstance(named, bool) and named > 0
    ranks = named if is_count and isinstance(named, int) else room or 2
    cluster = Cluster(chip, count=ranks, gpus_per_node=room or ranks)
    return RankGroup(ranks, cluster.nodes), cluster
