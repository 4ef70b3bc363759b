"""What libraries reach of a link's promised speed."""

from torchtally.chips import Link
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.timing.roofline.collectives import LINK_SHARE
from torchtally.units import Unit

BETWEEN_NODES_SHARE = 0.94
"""Of the network card's speed: "for NDR @ 400Gbps you should see 46-48GB/s per NIC", the middle of
it over 50 GB/s (NVIDIA/nccl-tests issue 290). On other networks an estimate."""


def reached_in_node(link: Link) -> Quantity:
    """Bytes per second in one direction that NCCL reaches between the chips of a node."""
    return _reached_bytes_per_s(link, LINK_SHARE, "NVIDIA/nccl-tests issue 212")


def reached_between_nodes(link: Link) -> Quantity:
    """Bytes per second in one direction that NCCL reaches over one chip's share of the network."""
    return _reached_bytes_per_s(link, BETWEEN_NODES_SHARE, "NVIDIA/nccl-tests issue 290")


def _reached_bytes_per_s(link: Link, share: float, source: str) -> Quantity:
    assert link.bytes_per_s_per_direction is not None, "clusters refuse links without a speed"
    reached, promised = (
        of(share, Unit.FRACTION),
        of(link.bytes_per_s_per_direction, Unit.BYTE_PER_S),
    )
    terms = {"reached_share": reached, "promised_bytes_per_s": promised}
    return derive(f"speed over {link.name}", Unit.BYTE_PER_S, " * ".join(terms), source, **terms)
