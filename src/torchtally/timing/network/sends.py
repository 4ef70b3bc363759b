"""Sends: alone, or many at once, as an all-to-all, a gather or a scatter.

NCCL's tuning has no model of them. Its own constants are put together here: base and hop of a
ring, the speed of links and cards, what each further partner costs within a node (0.4 us, the
"arity serialization latency" of CollNet) and over the network (one message posted), and the size up
to which sends take LL (P2P_LL_THRESHOLD). Messages to another node go through the
chip there that is nearest to the card (PXN), over the link once more.

Source: src/graph/tuning.cc, src/graph/paths.cc and src/enqueue.cc, NVIDIA/nccl 2.30.7 @5067397c.
"""

from functools import lru_cache

from torchtally.chips import Cluster
from torchtally.timing.constants import LL_GB_PER_S, PARTNER_US, SENDS_LL_BYTES, SENDS_SHARE
from torchtally.timing.network.graphs import ring
from torchtally.timing.network.group import RankGroup
from torchtally.timing.network.ways import (
    BASE_US,
    NETWORK_US,
    NVLINK_US,
    PCI_US,
    POST_OTHERS_US,
    POST_US,
    Way,
    extra_ring_us,
    kernel_channels,
)
from torchtally.timing.network.wires import Wires, wires


@lru_cache(maxsize=4096)
def sends(group: RankGroup, cluster: Cluster) -> tuple[Way, Way | None]:
    """One rank's partners each sent a piece of the payload: simple, and LL for small ones.

    The payload is what the rank has for all ranks, its own piece included. A send to one partner is
    not this: see `send`.
    """
    where = wires(group, cluster)
    n, nodes, k = group.ranks, group.nodes, group.per_node
    near, far = k - 1, n - k
    seconds_per_gb = []
    if where.link is not None:
        # What leaves the node takes the link to its card's chip first.
        crossing = far * (k - 1) / k
        seconds_per_gb.append((near + crossing) / n / where.link)
    if nodes > 1:
        seconds_per_gb.append(far / n / where.share)
    speed = 1.0 / max(seconds_per_gb)
    post_us = POST_US.get(where.cpu, POST_OTHERS_US)
    partners_us = PARTNER_US * max(0, near - 1) + post_us * max(0, far - 1)
    return _simple_and_ll(where, speed, partners_us, n, is_far=nodes > 1)


@lru_cache(maxsize=1024)
def send(is_far: bool, cluster: Cluster) -> tuple[Way, Way | None]:
    """One piece to one partner, in the same node or in another."""
    where = wires(RankGroup(2, 2 if is_far else 1), cluster)
    speed = where.share if is_far else where.link
    assert speed is not None, "two ranks of a node have a link"
    return _simple_and_ll(where, speed, 0.0, 1, is_far=is_far)


def least(ways: tuple[Way, Way | None], partners: int, payload_bytes: int) -> Way:
    """The faster of those that this size may take."""
    simple, ll = ways
    if ll is None or payload_bytes > partners * SENDS_LL_BYTES:
        return simple
    return min(simple, ll, key=lambda way: way.measured_s(payload_bytes))


def _simple_and_ll(
    where: Wires, speed: float, partners_us: float, parts: int, *, is_far: bool
) -> tuple[Way, Way | None]:
    channels = kernel_channels(where, ring(where))
    hop_us = NETWORK_US["tree"] if is_far else (NVLINK_US if where.is_nvlink else PCI_US)["ring"]
    flush_us = 2 * where.network_latency_us if is_far else 0.0
    latency_us = BASE_US["ring"]["simple"] + hop_us["simple"] + flush_us + partners_us
    ll_us = BASE_US["ring"]["LL"] + hop_us["LL"] + partners_us
    extra_us, share, extra_ll_us, ll_speed = 0.0, 1.0, 0.0, speed / 2
    if where.measured:
        base_us, partner_us = where.measured.sends_us
        extra_us = base_us + max(1, parts - 1) * partner_us - latency_us
        copy = where.measured.copy / (parts - 1) if parts > 1 else 0.0
        share = SENDS_SHARE * where.shared / (1 + copy)
        extra_ll_us = extra_ring_us("LL", where, where.measured, 1)
        ll_speed = min(ll_speed, parts * LL_GB_PER_S)
    simple = Way("pairwise", "simple", latency_us, speed, channels, extra_us=extra_us, share=share)
    if is_far:  # no buffers of LL are made for sends between nodes (ALLOC_P2P_NET_LL_BUFFERS)
        return simple, None
    return simple, Way("pairwise", "LL", ll_us, ll_speed, channels, extra_us=extra_ll_us)
