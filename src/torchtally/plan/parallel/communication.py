"""Collectives between chips: what each one sends, in how many steps, and how long it takes.

n: ranks.  k: ranks in one node.  N: nodes, n / k.

    seconds = base + steps * hop + bytes sent / speed          (the alpha-beta model)

Volumes and steps: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", sections 4.1 to 4.5; for trees Sanders, Speck and Traeff 2009. Latencies and
what protocols leave of the speed are NCCL's own table, by which it chooses the algorithm. A ring
crosses a node's border over one wire, and there are as many rings as wires: k times the speed of
one. Not modelled: reductions within the switch (NVLink SHARP), and other jobs on the network.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from torchtally.chips import Cluster
from torchtally.plan.closed_form import Bytes, Chips, Count, closed_form
from torchtally.plan.parallel.rates import reached_between_nodes, reached_in_node
from torchtally.plan.quantity import Amount, Quantity, derive, of, total
from torchtally.units import Unit

THAKUR = "Thakur et al. 2005, IJHPCA 19(1)"
NCCL = "NVIDIA/nccl, src/graph/tuning.cc @01afd20"


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of NCCL's to move bytes: its latencies, and its share of the speed."""

    name: str
    base_s: float
    nvlink_s: float
    pci_s: float
    network_s: float
    share: float


RINGS = (
    Protocol("LL", 3.6e-6, 0.47e-6, 1.0e-6, 2.7e-6, 1 / 4),
    Protocol("LL128", 10.0e-6, 1.9e-6, 2.5e-6, 4.0e-6, 0.92),
    Protocol("simple", 8.4e-6, 3.4e-6, 5.7e-6, 9.6e-6, 1.0),
)
TREES = (
    Protocol("LL", 4.4e-6, 0.52e-6, 1.0e-6, 5.0e-6, 0.9 / 3.8),
    Protocol("LL128", 4.4e-6, 1.2e-6, 1.9e-6, 8.5e-6, 0.9 * 0.915),
    Protocol("simple", 0.0, 28e-6, 28e-6, 50e-6, 0.9),
)
"""baseLat, hwLat and the refinements of bandwidth of NCCL's tuning model."""


@dataclass(frozen=True, slots=True)
class Network:
    """What joins the chips of a cluster, at the speeds that libraries reach."""

    node_size: int
    in_node: Quantity | None
    """Bytes per second of one chip and direction; None: a node has one chip."""
    between_nodes: Quantity | None
    """One chip's share; None: there is one node."""
    is_nvlink: bool
    """Chips of a node are joined by a link of their own, not by the host's."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Chips that communicate: how many, and how many of them stand in one node."""

    ranks: int
    in_node: int

    @property
    def nodes(self) -> int:
        return self.ranks // self.in_node


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective, as one chip sees it."""

    sent: Quantity
    """Bytes that this chip sends."""
    seconds: Quantity


def network(cluster: Cluster) -> Network:
    """Raises UsageError where no source gives the speed of a link that is needed."""
    size = min(cluster.node_size, cluster.count)
    inside = cluster.link_in_node if size > 1 else None
    across = cluster.link_between_nodes if not cluster.is_one_node else None
    return Network(
        size,
        None if inside is None else reached_in_node(inside),
        None if across is None else reached_between_nodes(across),
        inside is not None and inside is cluster.chip.link and "PCIe" not in inside.name,
    )


def group(ranks: int, stride: int, network: Network) -> RankGroup:
    """So many chips, each `stride` away from the next: as many of them in a node as fit evenly."""
    room = max(1, network.node_size // stride)
    return RankGroup(
        ranks, max(number for number in range(1, min(room, ranks) + 1) if ranks % number == 0)
    )


def all_reduce(payload: Amount, group: RankGroup, network: Network) -> Transfer:
    """The sum of all ranks' payload, on every rank: ring, tree or by levels, the fastest."""
    if group.ranks == 1:
        return _nothing("all-reduce")
    size = of(payload, Unit.BYTES, "payload")
    ways = [_ring("all-reduce", size, 2, group, network, ring) for ring in RINGS]
    ways += [_tree(size, group, network, tree) for tree in TREES]
    if group.nodes > 1 and group.in_node > 1:
        ways.append(_by_levels(size, group, network))
    return _fastest(ways)


def all_gather(payload: Amount, group: RankGroup, network: Network) -> Transfer:
    """Every rank's piece on all of them; the payload is all pieces together."""
    return _around("all-gather", payload, group, network)


def reduce_scatter(payload: Amount, group: RankGroup, network: Network) -> Transfer:
    """The sum of all ranks' payload, of which each rank keeps its piece."""
    return _around("reduce-scatter", payload, group, network)


def all_to_all(payload: Amount, group: RankGroup, network: Network) -> Transfer:
    """From every rank to every other; the payload is what one rank has for all.

    Within the node and between nodes at once; as many steps as there are partners, which is the
    pairwise exchange and an upper bound.
    """
    if group.ranks == 1:
        return _nothing("all-to-all")
    size = of(payload, Unit.BYTES, "payload")
    ways = []
    for protocol in RINGS:
        near, far = group.in_node - 1, group.ranks - group.in_node
        terms = _latencies(protocol, network.is_nvlink, near, far)
        inside = _pieces(near, size, group.ranks).with_name("sent in the node")
        across = _pieces(far, size, group.ranks).with_name("sent to other nodes")
        speeds = _speeds(network, group)
        ends = {"in_node": inside, "between_nodes": across}
        wires = [f"{way}_bytes / (share * {way}_bytes_per_s)" for way in speeds]
        slowest = f"max({', '.join(wires)})" if len(wires) > 1 else wires[0]
        seconds = derive(
            "all-to-all",
            Unit.SECONDS,
            f"{LATENCY} + {slowest}",
            f"{THAKUR}, section 4.2; {NCCL}",
            f"pairwise, {protocol.name}",
            share=of(protocol.share, Unit.FRACTION),
            **terms,
            **{f"{way}_bytes": ends[way] for way in speeds},
            **{f"{way}_bytes_per_s": speed for way, speed in speeds.items()},
        )
        sent = total("sent", Unit.BYTES, {"in_node": inside, "to_other_nodes": across})
        ways.append(Transfer(sent, seconds))
    return _fastest(ways)


def send(payload: Amount, *, crosses_nodes: bool, network: Network) -> Transfer:
    """From one chip to another."""
    size = of(payload, Unit.BYTES, "payload")
    speed = network.between_nodes if crosses_nodes else network.in_node
    assert speed is not None, "one chip alone sends nothing"
    ways = []
    for protocol in RINGS:
        terms = _latencies(protocol, network.is_nvlink, int(not crosses_nodes), int(crosses_nodes))
        seconds = derive(
            "send",
            Unit.SECONDS,
            f"{LATENCY} + sent / (share * link_bytes_per_s)",
            NCCL,
            protocol.name,
            sent=size,
            share=of(protocol.share, Unit.FRACTION),
            link_bytes_per_s=speed,
            **terms,
        )
        ways.append(Transfer(size, seconds))
    return _fastest(ways)


LATENCY = "base_s + steps_in_node * hop_in_node_s + steps_between * hop_between_s"


def _around(name: str, payload: Amount, group: RankGroup, network: Network) -> Transfer:
    if group.ranks == 1:
        return _nothing(name)
    size = of(payload, Unit.BYTES, "payload")
    return _fastest([_ring(name, size, 1, group, network, ring) for ring in RINGS])


def _ring(
    name: str,
    payload: Quantity,
    rounds: int,
    group: RankGroup,
    network: Network,
    protocol: Protocol,
) -> Transfer:
    """Once round for a gather or a scatter, twice for both, which is an all-reduce."""
    sent = _pieces(rounds * (group.ranks - 1), payload, group.ranks)
    between = rounds * (group.nodes - 1)
    terms = _latencies(protocol, network.is_nvlink, rounds * (group.ranks - 1) - between, between)
    note = f"ring, {protocol.name}"
    return Transfer(sent, _transfer_s(name, note, sent, protocol.share, terms, group, network))


def _tree(payload: Quantity, group: RankGroup, network: Network, protocol: Protocol) -> Transfer:
    """Up a tree and down again: in a node a chain, between nodes two binary trees at once."""
    sent = derive("sent", Unit.BYTES, "2 * payload", "Sanders et al. 2009", payload=payload)
    depth = (group.nodes - 1).bit_length()
    terms = _latencies(protocol, network.is_nvlink, 2 * (group.in_node - 1), 2 * depth)
    note = f"tree, {protocol.name}"
    return Transfer(
        sent, _transfer_s("all-reduce", note, sent, protocol.share, terms, group, network)
    )


def _by_levels(payload: Quantity, group: RankGroup, network: Network) -> Transfer:
    """Reduce-scatter in the node, all-reduce of the pieces between nodes, all-gather in the node.

    Every chip does its piece over its own wire.
    """
    inner, outer = RankGroup(group.in_node, group.in_node), RankGroup(group.nodes, 1)
    piece = _pieces(1, payload, inner.ranks).with_name("piece")
    scatter, gather = (_around(word, payload, inner, network) for word in ("scatter", "gather"))
    middle = _fastest([_ring("all-reduce", piece, 2, outer, network, ring) for ring in RINGS])
    parts = {"scatter": scatter, "between_nodes": middle, "gather": gather}
    return add_up("all-reduce", parts, note="by levels")


def _transfer_s(
    name: str,
    note: str,
    sent: Quantity,
    share: float,
    terms: Mapping[str, Quantity],
    group: RankGroup,
    network: Network,
) -> Quantity:
    speeds = _speeds(network, group)
    wires = {"between_nodes": f"{group.in_node} * between_nodes_bytes_per_s"}
    slowest = ", ".join(wires.get(way, f"{way}_bytes_per_s") for way in speeds)
    return derive(
        name,
        Unit.SECONDS,
        f"{LATENCY} + sent / (share * {f'min({slowest})' if len(speeds) > 1 else slowest})",
        f"{THAKUR}; {NCCL}",
        note,
        sent=sent,
        share=of(share, Unit.FRACTION),
        **terms,
        **{f"{way}_bytes_per_s": speed for way, speed in speeds.items()},
    )


def _speeds(network: Network, group: RankGroup) -> dict[str, Quantity]:
    """Of the wires that the group uses."""
    speeds = {}
    if group.in_node > 1:
        assert network.in_node is not None
        speeds["in_node"] = network.in_node
    if group.nodes > 1:
        assert network.between_nodes is not None
        speeds["between_nodes"] = network.between_nodes
    return speeds


@lru_cache(maxsize=4096)
def _latencies(
    protocol: Protocol, is_nvlink: bool, steps_in_node: int, steps_between: int
) -> Mapping[str, Quantity]:
    hop_s = protocol.nvlink_s if is_nvlink else protocol.pci_s
    return {
        "base_s": of(protocol.base_s, Unit.SECONDS, "base"),
        "steps_in_node": of(steps_in_node, Unit.COUNT, "steps in the node"),
        "hop_in_node_s": of(hop_s, Unit.SECONDS, "hop in the node"),
        "steps_between": of(steps_between, Unit.COUNT, "steps between nodes"),
        "hop_between_s": of(protocol.network_s, Unit.SECONDS, "hop between nodes"),
    }


@closed_form("sent", Unit.BYTES, THAKUR)
def _pieces(pieces: Count, payload: Bytes, ranks: Chips) -> str:
    """So many of the payload's n pieces."""
    return "pieces * payload / ranks"


def _fastest(ways: list[Transfer]) -> Transfer:
    return min(ways, key=lambda way: way.seconds.value)


def _nothing(name: str) -> Transfer:
    return Transfer(derive("sent", Unit.BYTES, "0"), derive(name, Unit.SECONDS, "0"))


def add_up(name: str, transfers: dict[str, Transfer], *, note: str = "") -> Transfer:
    """One after the other."""
    sent = {word: transfer.sent for word, transfer in transfers.items()}
    seconds = {word: transfer.seconds for word, transfer in transfers.items()}
    return Transfer(total("sent", Unit.BYTES, sent), total(name, Unit.SECONDS, seconds, note=note))


def repeat(name: str, transfer: Transfer, times: Quantity, note: str = "") -> Transfer:
    """So many times over."""
    sent = derive("sent", Unit.BYTES, "times * each", times=times, each=transfer.sent)
    once = transfer.seconds
    whole = derive(name, Unit.SECONDS, "times * each", "", note, times=times, each=once)
    return Transfer(sent, whole)
