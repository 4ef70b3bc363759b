"""What joins the ranks of one group: the part of a cluster that a collective of them uses."""

from dataclasses import dataclass
from functools import lru_cache

from torchtally.chips import Cluster, Link
from torchtally.chips.meshes import MESHES
from torchtally.timing.constants import CARD_SHARE, PCIE_SHARE, SHARED_PCIE
from torchtally.timing.network.generation import (
    GB,
    PCIE_MEASURED,
    Generation,
    NodeTimes,
    generation,
    link_share,
)
from torchtally.timing.network.group import RankGroup
from torchtally.timing.network.meshes import rings


@dataclass(frozen=True, slots=True)
class Wires:
    """Speeds in GB/s and one direction, as NCCL counts on them."""

    group: RankGroup
    generation: Generation
    is_nvlink: bool
    """The ranks of a node are joined by a link of their own, not by the host's."""
    has_multicast: bool
    link: float | None
    """Of one rank to the others of its node; None: its node has no others."""
    card: float | None
    """Of one network card; None: there is one node."""
    cards: int
    """Cards of a node that the group's ranks there have to themselves."""
    network_latency_us: float
    cpu: str

    @property
    def measured(self) -> NodeTimes | None:
        """Kernels as they run; None between nodes, and where nothing but NCCL's table says so."""
        if self.card is not None:
            return None
        return self.generation.measured if self.is_nvlink else PCIE_MEASURED

    @property
    def shared(self) -> float:
        """Share of a link's speed while all ranks of a node send, as measured."""
        return 1.0 if self.is_nvlink or self.group.ranks <= 2 else SHARED_PCIE

    @property
    def share(self) -> float:
        """One rank's share of the network."""
        assert self.card is not None, "one node has no network"
        return self.card * self.cards / self.group.per_node


def _part(link: Link, chips: int) -> float:
    """Share of a chip's links that a ring through so many chips of a node finds: all, by a
    switch.
    """
    mesh = MESHES.get(link.mesh)
    return rings(mesh, chips) / mesh.links_per_chip if mesh else 1.0


@lru_cache(maxsize=1024)
def wires(group: RankGroup, cluster: Cluster) -> Wires:
    """Raises UsageError where no source gives the speed of a link that is needed."""
    chip, link, is_nvlink = cluster.chip, None, False
    if group.ranks > group.nodes:
        inside = cluster.link_in_node
        part = _part(inside, -(-group.ranks // group.nodes))
        if not part and chip.host_link:
            inside, part = chip.host_link, 1.0
        assert inside.bytes_per_s_per_direction is not None
        is_nvlink = inside is chip.link and "PCIe" not in inside.name
        share = link_share(chip) if is_nvlink else PCIE_SHARE
        link = share * part * inside.bytes_per_s_per_direction
    card, cards, latency_s = None, 0, None
    if group.nodes > 1:
        network = cluster.link_between_nodes
        assert network.bytes_per_s_per_direction is not None
        # A group has the share of its ranks: other groups use the rest at the same time.
        node_share = CARD_SHARE * network.bytes_per_s_per_direction * group.per_node
        cards = max(1, round(group.per_node * cluster.cards_per_chip))
        card, latency_s = node_share / cards, network.latency_s
    return Wires(
        group,
        generation(chip),
        is_nvlink,
        is_nvlink and cluster.has_multicast,
        None if link is None else link / GB,
        None if card is None else card / GB,
        cards,
        1e6 * (latency_s or 0.0),
        chip.node.cpu if chip.node else "",
    )
