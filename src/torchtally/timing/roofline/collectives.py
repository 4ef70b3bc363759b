"""Collectives: the time of `timing.network`, bound NETWORK.

In a run of several ranks a call names its group, by the number in the trace. Elsewhere it says how
many ranks take part only where its operator takes it; else a full node of the chip is taken, or two
chips where no source says what node it is sold in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.chips import Chip, Cluster
from torchtally.timing.network import CollectiveKind, RankGroup, collective
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import NOTHING, bound_kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call, ProcessGroup, World
from torchtally.trace.peers import MESSAGES
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
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("p2p_ops", "send"),
    ("send", "send"),
    ("recv", "send"),
)
"""What an operator does, by the first of these that its name has."""


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
        peer = call.literal(MESSAGES.get(call.name, ""))
        if isinstance(peer, int) and 0 <= peer < len(ranks):
            ranks = (self.world.rank, ranks[peer])
        return RankGroup.of_ranks(ranks, self.world.gpus_per_node), cluster


def collective_kernel(
    call: Call, cost: Cost, chip: Chip, ranks: Communicators | None = None
) -> Kernel:
    """Raises UsageError where no source gives the speed of the chip's link, nor of its host's."""
    kind = kind_of(call.name)
    if kind is None or (kind != "barrier" and not (cost.network_bytes or cost.bytes)):
        return NOTHING
    named = None if ranks is None else ranks.group_of(call, chip)
    group, cluster = ranks_of(call, chip) if named is None else named
    transfer = collective(kind, cost.network_bytes, group, cluster)
    return bound_kernel(
        memory_s=cost.bytes / bandwidth_bytes_per_s(chip),
        network_s=transfer.seconds,
        overhead_s=0.0,
    )


def kind_of(operator: str) -> CollectiveKind | None:
    """What the ranks do together in this operator; None for what sends nothing between GPUs."""
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
