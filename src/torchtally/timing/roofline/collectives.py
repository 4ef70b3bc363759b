"""Collectives: a latency and the bytes over the link, bound NETWORK (the alpha-beta model).

A cost counts the payload. Of it, a ring moves over each device's link 2 * (n - 1) / n for an
all-reduce and (n - 1) / n for a gather or scatter of n ranks (NCCL tests, PERFORMANCE.md). A call
knows n only where the operator takes it; elsewhere the bound for many ranks is taken: 2 and 1.
The link is the chip's own, within a node: across nodes it is slower, which a layer above knows.
"""

from torchtally.chips import Chip, Cluster
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import NOTHING, bound_kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call
from torchtally.work import Cost

LINK_SHARE = 0.82
"""Of the link's speed, what NCCL reaches: 370 of 450 GB/s of NVLink 4, "protocol overhead (~20 %)",
NVIDIA/nccl-tests issue 212."""

ALPHA_S = 20e-6
"""An estimate of the least time of a collective within a node: 13 us for 32 KiB between two
RTX 2080 Ti over NVLink (NVIDIA/nccl-tests issue 44); more ranks take more hops."""


def collective_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Raises UsageError where no source gives the speed of the chip's link, nor of its host's."""
    if cost.network_bytes == 0 and cost.bytes == 0:
        return NOTHING
    link = Cluster(chip, count=2, gpus_per_node=2).link_in_node
    assert link.bytes_per_s_per_direction is not None
    speed = LINK_SHARE * link.bytes_per_s_per_direction
    return bound_kernel(
        memory_s=cost.bytes / bandwidth_bytes_per_s(chip),
        network_s=ALPHA_S + share_on_link(call) * cost.network_bytes / speed,
        overhead_s=0.0,
    )


def share_on_link(call: Call) -> float:
    """Of the payload, what crosses one device's link in one direction."""
    ranks = call.literal("group_size")
    is_count = isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0
    part = (ranks - 1) / ranks if is_count and isinstance(ranks, int) else 1.0
    is_all_reduce = "allreduce" in call.name or "all_reduce" in call.name
    return (2 if is_all_reduce else 1) * part
