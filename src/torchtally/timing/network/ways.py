"""The ways that NCCL has for a collective: algorithm and protocol, latency and bandwidth of each.

n: ranks.  N: nodes.  k: ranks of a node.  A step is a hop from rank to rank.

    seconds = latency + payload / bandwidth                     (the alpha-beta model)

and NCCL takes the fastest. Restated from ncclTopoTuneModel and ncclTopoGetAlgoTime in
src/graph/tuning.cc, NVIDIA/nccl 2.30.7 @5067397c: its microseconds and GB/s are measurements of
NVIDIA's. They choose the way; what it takes within a node was measured since (`NodeTimes` in
`generation.py`). Left out: CollNet (InfiniBand SHARP), tuner plugins, symmetric and registered
buffers, copy engines.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from torchtally.chips import Cluster
from torchtally.timing.constants import LL_BETWEEN_OTHERS
from torchtally.timing.network.generation import BLACKWELL, GB, LL_BETWEEN, VOLTA, NodeTimes
from torchtally.timing.network.graphs import Graph, nvls, ring, tree
from torchtally.timing.network.group import RankGroup
from torchtally.timing.network.wires import Wires, wires

Algorithm = Literal["ring", "tree", "NVLS", "NVLSTree", "PAT", "pairwise"]
Protocol = Literal["LL", "LL128", "simple"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "simple")
TunedKind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
"""Collectives with algorithms of their own; all others are sends."""

ByProtocol = dict[Protocol, float]


def _by_protocol(*numbers: float) -> ByProtocol:
    return dict(zip(PROTOCOLS, numbers, strict=True))


BASE_US: dict[str, ByProtocol] = {
    "tree": _by_protocol(6.8, 14.0, 8.4),
    "ring": _by_protocol(6.6, 14.0, 8.4),
    "NVLS": _by_protocol(0.0, 0.0, 0.0),
    "PAT": _by_protocol(8.0, 8.0, 8.0),
}
"""Before the first byte moves."""
NVLINK_US: dict[str, ByProtocol] = {
    "tree": _by_protocol(0.6, 1.25, 4.0),
    "ring": _by_protocol(0.6, 1.9, 3.4),
    "NVLS": _by_protocol(0.0, 0.0, 25.0),
}
PCI_US: dict[str, ByProtocol] = {
    "tree": _by_protocol(1.0, 1.9, 4.0),
    "ring": _by_protocol(1.0, 2.5, 5.7),
}
NETWORK_US: dict[str, ByProtocol] = {
    "tree": _by_protocol(5.0, 8.5, 14.0),
    "ring": _by_protocol(2.7, 4.0, 14.0),
    "NVLSTree": _by_protocol(0.0, 0.0, 20.9),
    "PAT": _by_protocol(0.0, 0.0, 14.0),
}
"""Of one step, by what it goes over."""

POST_US = {"AMD": 2.0}
POST_OTHERS_US = 1.0
"""What the host takes to post one message to the network."""
PLATEAU = {VOLTA.name: 1.9}
PLATEAU_OTHERS = 1.4
"""How many times longer the steps of a ring over nodes take, once messages have some size."""

BLOCK_BYTES: dict[Protocol, int] = {"LL": 512 * 8, "LL128": 640 * 8, "simple": 512 * 64}
"""Threads of a block, each of which wants so many bytes: fewer blocks run for less."""

CORRECTIONS: dict[Protocol, tuple[float, ...]] = {
    "LL": (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8,
           0.9, 1.0, 1.0, 1.0, 1.0, 1.0),
    "LL128": (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8,
              0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0),
    "simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7,
               0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9, 1.0),
}  # fmt: skip
"""Of a tree's bandwidth what is left at 64 bytes, 128, 256 and so on; then all of it."""


@dataclass(frozen=True, slots=True)
class Way:
    """One algorithm with one protocol, for one group on one cluster."""

    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    gb_per_s: float
    """Of the payload, not of the wire."""
    channels: int
    """Blocks of its kernel at most."""
    is_corrected: bool = False
    steps: "Pipeline | None" = None
    """Of a switch's pipeline."""
    plateau: float = 1.0
    plateau_bytes: int = 0
    extra_us: float = 0.0
    """Latency besides what NCCL counts on, as measured."""
    share: float = 1.0
    """Of the bandwidth that NCCL counts on, as measured."""

    def latency_s(self, payload_bytes: int) -> float:
        is_long = self.plateau_bytes and payload_bytes >= self.plateau_bytes
        return 1e-6 * self.latency_us * (self.plateau if is_long else 1.0)

    def channels_for(self, payload_bytes: int, ranks: int) -> int:
        """Channels of its blocks that have enough to do at this size."""
        if self.algorithm in ("NVLS", "NVLSTree"):
            return self.channels
        each = BLOCK_BYTES[self.protocol]
        if self.algorithm == "ring" and self.protocol == "LL":
            each *= ranks
        return max(1, min(self.channels, payload_bytes // each))

    def bytes_per_s(self, payload_bytes: int) -> float:
        """Bandwidth of the payload, once it moves."""
        speed = GB * self.gb_per_s
        if self.is_corrected:
            speed *= correction(self.protocol, payload_bytes)
        if self.steps and payload_bytes:
            # The first step is copied in before any is reduced, and the last one out after all.
            speed /= 1 + min(self.steps.step_bytes(payload_bytes) / payload_bytes, 1.0)
        return speed

    def seconds(self, payload_bytes: int) -> float:
        """What NCCL counts on, and chooses by."""
        return self.latency_s(payload_bytes) + payload_bytes / self.bytes_per_s(payload_bytes)

    def as_measured(self, payload_bytes: int) -> tuple[float, float]:
        """(seconds of latency, bytes per second) as the way runs."""
        latency_s = self.latency_s(payload_bytes) + 1e-6 * self.extra_us
        return latency_s, self.share * self.bytes_per_s(payload_bytes)

    def measured_s(self, payload_bytes: int) -> float:
        latency_s, bytes_per_s = self.as_measured(payload_bytes)
        return latency_s + payload_bytes / bytes_per_s


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline of NVLS: buffers are copied in, reduced by the switch, and copied out.

    NCCL's model has no term for filling and draining it. Both copies are local and taken to last
    half a step each: an estimate. Chunks shrink with the payload (calcCollChunking in
    src/enqueue.cc).
    """

    at_once: int
    """Chunks of a step: blocks times heads."""
    largest_bytes: int
    limits: tuple[tuple[int, int], ...]
    """(steps, bytes): for fewer steps of the chunk so far, chunks of so many bytes."""

    def step_bytes(self, payload_bytes: int) -> int:
        chunk_bytes = self.largest_bytes
        for steps, smaller_bytes in self.limits:
            if payload_bytes < steps * self.at_once * chunk_bytes:
                chunk_bytes = min(chunk_bytes, smaller_bytes)
        return self.at_once * chunk_bytes


KIB = 1024
NVLS_LIMITS = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
NVLS_TREE_LIMITS = ((4, 64 * KIB), (1, 32 * KIB))


def correction(protocol: Protocol, payload_bytes: int) -> float:
    """A tree's share of its bandwidth at this size.

    Between the powers of two it is interpolated; NCCL takes steps, by which more bytes would now
    and then take less time.
    """
    shares = CORRECTIONS[protocol]
    place = math.log2(payload_bytes / 64) if payload_bytes > 64 else 0.0
    at = min(int(place), len(shares) - 1)
    if at == len(shares) - 1:
        return shares[-1]
    return shares[at] + (place - at) * (shares[at + 1] - shares[at])


@lru_cache(maxsize=4096)
def ways(kind: TunedKind, group: RankGroup, cluster: Cluster) -> tuple[Way, ...]:
    """All that NCCL would compare. Raises UsageError where a link's speed is not known."""
    where = wires(group, cluster)
    rings = ring(where)
    trees = tree(where, rings.channels)
    choices = [*_rings(kind, where, rings)]
    if kind == "all_reduce":
        choices += [*_trees(where, trees), *_nvls_trees(where)]
    if kind in ("all_reduce", "all_gather", "reduce_scatter"):
        choices += _nvls(kind, where)
    if kind in ("all_gather", "reduce_scatter") and group.ranks == group.nodes:
        choices.append(_pat(where, trees))
    return tuple(choices)


def kernel_channels(where: Wires, rings: Graph) -> int:
    """Blocks of a ring's or a tree's kernel: the search's channels twice (ncclTopoPostset)."""
    channels = 2 * rings.channels
    is_fast = where.generation.nvls_share > 0 and rings.in_node > 45.0
    return 2 * channels if where.card is not None and is_fast and channels < 16 else channels


def _rings(kind: TunedKind, where: Wires, rings: Graph) -> Iterator[Way]:
    n, nodes = where.group.ranks, where.group.nodes
    steps = {"all_reduce": 2 * (n - 1), "broadcast": n, "reduce": n}.get(kind, n - 1)
    channels = kernel_channels(where, rings)
    wire = rings.channels * rings.in_node
    for protocol in _protocols(where):
        speed = _ring_speed(protocol, where, rings, wire)
        plateau, plateau_bytes = 1.0, 0
        if kind == "all_reduce" and protocol == "simple" and nodes > 1:
            plateau = PLATEAU.get(where.generation.name, PLATEAU_OTHERS)
            plateau_bytes = 64 * channels * n
        latency_us = BASE_US["ring"][protocol] + _ring_steps_us(kind, protocol, where, steps)
        extra_us, share = 0.0, 1.0
        if where.measured:
            extra_us = extra_ring_us(protocol, where, where.measured, steps)
            copy = where.measured.copy if protocol == "simple" else 0.0
            share = where.shared / (1 + copy / steps)
        yield Way(
            "ring", protocol, latency_us, speed * n / steps, channels,
            plateau=plateau, plateau_bytes=plateau_bytes, extra_us=extra_us, share=share,
        )  # fmt: skip


def extra_ring_us(protocol: Protocol, where: Wires, measured: NodeTimes, steps: int) -> float:
    """What a ring's base and steps take besides those of NCCL's table. LL128 is taken to be off by
    as much as LL is.
    """
    of_table: Protocol = "simple" if protocol == "simple" else "LL"
    base_us, step_us = measured.simple_us if protocol == "simple" else measured.ll_us
    base_us -= BASE_US["ring"][of_table]
    return base_us + steps * (step_us - _in_node_us(where)["ring"][of_table])


def _ring_speed(protocol: Protocol, where: Wires, rings: Graph, wire: float) -> float:
    if protocol == "LL":
        return min(_most_ll(where), wire / 2)
    if protocol == "LL128":
        return min(0.92 * wire, rings.channels * where.generation.ring_ll128)
    return wire


def _ring_steps_us(kind: TunedKind, protocol: Protocol, where: Wires, steps: int) -> float:
    nodes = where.group.nodes
    if kind in ("broadcast", "reduce"):  # one step shows, and the others run beside each other
        table = _in_node_us(where) if nodes == 1 else NETWORK_US
        return table["ring"][protocol] + (0.0 if nodes == 1 else _extra_us(protocol, where))
    if nodes == 1:
        return steps * _in_node_us(where)["ring"][protocol]
    between = (2 if kind == "all_reduce" else 1) * (nodes - 1)
    # Every step within the nodes waits for the host to post what goes between them.
    post_us = POST_US.get(where.cpu, POST_OTHERS_US) * (3 if protocol == "simple" else 1)
    inside_us = max(_in_node_us(where)["ring"][protocol], post_us)
    return (steps - between) * inside_us + between * _hop_us("ring", protocol, where)


def _trees(where: Wires, trees: Graph) -> Iterator[Way]:
    n, nodes = where.group.ranks, where.group.nodes
    by = min(nodes, 3) - 1
    alike, channels = where.generation, trees.channels
    wire = channels * (trees.in_node if nodes <= 2 else trees.between)
    most = min(0.92 * wire, channels * alike.tree[by])
    for protocol in _protocols(where):
        speed = most
        if protocol == "LL":
            speed = min(most / 3.8, _most_ll(where))
        elif protocol == "LL128":
            left = 7 / 9 if nodes == 1 else 120 / 128
            speed = min(most * left, channels * alike.tree_ll128[by])
        if n == nodes > 1:  # a node of one rank has no chain to balance (maxTreePattern)
            speed *= 0.85
        inside_us = (n // nodes - 1) * _in_node_us(where)["tree"][protocol]
        across_us = int(math.log2(nodes)) * _hop_us("tree", protocol, where) if nodes > 1 else 0.0
        yield Way(
            "tree",
            protocol,
            BASE_US["tree"][protocol] + 2 * (inside_us + across_us),
            speed / 2,
            2 * channels,
            is_corrected=True,
        )


def _nvls(kind: TunedKind, where: Wires) -> Iterator[Way]:
    """NVLS within one node; over more it needs CollNet."""
    graph = nvls(where)
    if graph is None or where.group.nodes > 1:
        return
    n, alike = where.group.ranks, where.generation
    if kind != "all_reduce" and n > graph.channels:  # every rank's part needs a head
        return
    each = graph.in_node * alike.nvls_share * (graph.channels - 1) / graph.channels
    # An all-reduce does both of its halves at once.
    wire = graph.channels * each * (2.0 if kind == "all_reduce" else (n - 1) / n)
    speed = wire * n / (2 * (n - 1)) if kind == "all_reduce" else wire
    blocks = alike.nvls_channels[0]
    steps = Pipeline(blocks * graph.channels, 128 * KIB, NVLS_LIMITS)
    yield Way("NVLS", "simple", NVLINK_US["NVLS"]["simple"], speed, blocks, steps=steps)


def _nvls_trees(where: Wires) -> Iterator[Way]:
    """A switch in the node, trees of its heads between nodes."""
    graph = nvls(where)
    n, nodes, alike = where.group.ranks, where.group.nodes, where.generation
    if graph is None or nodes == 1:
        return
    each = 2 * graph.in_node * alike.nvls_share * (graph.channels - 1) / graph.channels
    between = graph.between * (2 if nodes == 2 else 1)
    wire = graph.channels * min(each, between, alike.nvls_tree[min(nodes, 3) - 1])
    latency_us = NVLINK_US["NVLS"]["simple"]
    latency_us += 2 * int(math.log2(nodes)) * _hop_us("NVLSTree", "simple", where)
    blocks = alike.nvls_channels[1]
    # Many nodes wait for each other less with small chunks (ncclNvlsTuning, src/transport/nvls.cc).
    largest_bytes = 64 * KIB if nodes >= 4 or alike is BLACKWELL else 128 * KIB
    yield Way(
        "NVLSTree",
        "simple",
        latency_us,
        wire * n / (2 * (n - 1)),
        blocks,
        is_corrected=alike is BLACKWELL and where.cpu != "Arm",
        steps=Pipeline(blocks * graph.channels, largest_bytes, NVLS_TREE_LIMITS),
    )


def _pat(where: Wires, trees: Graph) -> Way:
    """Parallel aggregated trees: one rank a node."""
    nodes = where.group.nodes
    wire = trees.channels * (trees.in_node if nodes <= 2 else trees.between)
    latency_us = BASE_US["PAT"]["simple"] + 2.8 * nodes
    latency_us += int(math.log2(nodes)) * _hop_us("PAT", "simple", where) / 3.5
    return Way("PAT", "simple", latency_us, 0.75 * wire, 2 * trees.channels)


def _protocols(where: Wires) -> tuple[Protocol, ...]:
    """LL128 needs stores of 128 bytes to stay whole, which PCIe in a node does not promise."""
    return PROTOCOLS if where.is_nvlink or where.link is None else ("LL", "simple")


def _most_ll(where: Wires) -> float:
    nodes = where.group.nodes
    if nodes == 1:
        return where.generation.ll
    return LL_BETWEEN.get(where.cpu, LL_BETWEEN_OTHERS)[min(nodes, 3) - 2]


def _in_node_us(where: Wires) -> dict[str, ByProtocol]:
    return NVLINK_US if where.is_nvlink else PCI_US


def _hop_us(algorithm: str, protocol: Protocol, where: Wires) -> float:
    """Latency from node to node. With one rank a node all of it shows, which is what a tree's
    takes.
    """
    is_alone = where.group.ranks == where.group.nodes
    us = NETWORK_US["tree" if is_alone else algorithm][protocol]
    return us + _extra_us(protocol, where)


def _extra_us(protocol: Protocol, where: Wires) -> float:
    """Latency that a slower network adds: "simple" waits for the card's flush as well."""
    return where.network_latency_us * (2 if protocol == "simple" else 1)
