"""Rings through a DGX-1, by its links."""

import pytest

from torchtally.chips.clusters import cluster
from torchtally.chips.meshes import HYBRID_CUBE, Mesh
from torchtally.timing.network import RankGroup, collective
from torchtally.timing.network.meshes import rings

GIB = 1 << 30


def test_each_chip_of_the_mesh_has_six_links() -> None:
    for chip in range(8):
        assert sum(HYBRID_CUBE.between(chip, other) for other in range(8)) == 6


@pytest.mark.parametrize(
    ("ranks", "count"), [(1, 0), (2, 1), (3, 2), (4, 4), (5, 2), (6, 2), (7, 4), (8, 6)]
)
def test_rings_through_the_first_chips(ranks: int, count: int) -> None:
    """The fifth chip is linked to the first alone: its rings go through that one."""
    assert rings(HYBRID_CUBE, ranks) == count


def test_chips_that_no_link_joins_have_no_ring() -> None:
    assert rings(Mesh("far apart", {(0, 1): 1}, 1, "made up"), 3) == 0


@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 4), (8, 6)])
def test_a_ring_is_as_fast_as_its_links(ranks: int, links: int) -> None:
    """NCCL counts on 20 of 25 GB/s of each."""
    ring = collective("all_reduce", 8 * GIB, RankGroup(ranks), cluster("8xV100-SXM-32GB"))
    assert ring.bus_bytes_per_s == pytest.approx(links * 20e9, rel=0.01)
