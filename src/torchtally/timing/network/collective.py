"""The time of one collective among the ranks of a group: the package's one network model."""

from dataclasses import dataclass
from typing import Literal, get_args

from torchtally.chips import Cluster
from torchtally.errors import UsageError
from torchtally.timing.network.group import RankGroup
from torchtally.timing.network.sends import least, send, sends
from torchtally.timing.network.ways import Algorithm, Protocol, TunedKind, Way, ways
from torchtally.timing.network.wires import wires

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
    "scatter", "send", "barrier",
]  # fmt: skip
"""What the ranks of a group do together; "send" is one rank to one other."""

BARRIER_BYTES = 1
"""A barrier of ProcessGroupNCCL is an all-reduce of one byte."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective, as one rank sees it, alone on the network."""

    kind: CollectiveKind
    payload_bytes: int
    sent_bytes: int
    """What a rank has to send at least (nccl-tests counts the bus bandwidth by it): of an
    all-reduce 2 * (n - 1) / n of the payload, whatever the algorithm does."""
    latency_s: float
    """Of `seconds`, what does not depend on bytes."""
    seconds: float
    payload_bytes_per_s: float
    """Of the payload, once it moves; 0 for one rank."""
    algorithm: Algorithm | None
    """None: one rank, which has nothing to do."""
    protocol: Protocol | None
    channels: int
    """Blocks of its kernel: each keeps a multiprocessor of the GPU from other work meanwhile."""
    is_measured: bool = False
    """By measurements within a node, and not by NCCL's table alone."""

    @property
    def bus_bytes_per_s(self) -> float:
        """nccl-tests' "busbw": comparable with the speed of a link, for any number of ranks."""
        return self.sent_bytes / self.seconds if self.seconds else 0.0

    @property
    def bound(self) -> Literal["latency", "bandwidth"]:
        """What takes the larger part of the time."""
        return "latency" if 2 * self.latency_s >= self.seconds else "bandwidth"

    @property
    def way(self) -> str:
        """The algorithm and the protocol in two words: "ring LL128", "NVLS"."""
        if self.algorithm is None:
            return ""
        is_said = self.protocol != "simple"
        return f"{self.algorithm} {self.protocol}" if is_said else self.algorithm


def collective(
    kind: CollectiveKind,
    payload_bytes: int,
    group: RankGroup,
    cluster: Cluster,
    *,
    algorithm: Algorithm | None = None,
    is_staged: bool = True,
) -> Transfer:
    """How long these ranks take for this payload, by the way that NCCL would choose.

    The payload is the tensor that the collective is about, whole: what all-gather gives, what
    reduce-scatter takes, what one rank has for all others in an all-to-all, the list at the root of
    gather and scatter. Calls that NCCL groups into one kernel are one transfer of their sum.
    `algorithm` is NCCL_ALGO: only that one. Kernels that store into other GPUs' memory, as DeepEP's
    do, are not `is_staged`: they have the speeds of NCCL's table, and no copies out of its buffers.

    Assumed: every rank arrives at the same time, no other job is on the network, all groups of a
    node share its cards evenly, buffers are not registered, and compute runs elsewhere.

    Raises UsageError where no source gives the speed of a link, or there is no such algorithm here.
    """
    assert kind in get_args(CollectiveKind), kind
    assert payload_bytes >= 0, payload_bytes
    if group.ranks == 1:
        return Transfer(kind, payload_bytes, 0, 0.0, 0.0, 0.0, None, None, 0)
    payload_bytes = BARRIER_BYTES if kind == "barrier" else payload_bytes
    way = _way(kind, payload_bytes, group, cluster, algorithm)
    is_measured = is_staged and wires(group, cluster).measured is not None
    latency_s, bytes_per_s = way.latency_s(payload_bytes), way.bytes_per_s(payload_bytes)
    if is_measured:
        latency_s, bytes_per_s = way.as_measured(payload_bytes)
    return Transfer(
        kind,
        payload_bytes,
        least_sent_bytes(kind, payload_bytes, group.ranks),
        latency_s,
        latency_s + payload_bytes / bytes_per_s,
        bytes_per_s,
        way.algorithm,
        way.protocol,
        way.channels_for(payload_bytes, group.ranks),
        is_measured,
    )


def least_sent_bytes(kind: CollectiveKind, payload_bytes: int, ranks: int) -> int:
    """What one rank has to send at least (nccl-tests, doc/PERFORMANCE.md)."""
    if kind in ("send", "broadcast", "reduce"):
        return payload_bytes if ranks > 1 else 0
    if kind == "barrier":
        return 0
    times = 2 if kind == "all_reduce" else 1
    return round(times * (ranks - 1) * payload_bytes / ranks)


def _way(
    kind: CollectiveKind,
    payload_bytes: int,
    group: RankGroup,
    cluster: Cluster,
    algorithm: Algorithm | None,
) -> Way:
    match kind:
        case "send":
            return least(send(group.nodes > 1, cluster), 1, payload_bytes)
        case "all_to_all" | "gather" | "scatter":
            return least(sends(group, cluster), group.ranks, payload_bytes)
        case "barrier":
            return _fastest("all_reduce", BARRIER_BYTES, group, cluster, algorithm)
        case _:
            return _fastest(kind, payload_bytes, group, cluster, algorithm)


def _fastest(
    kind: TunedKind,
    payload_bytes: int,
    group: RankGroup,
    cluster: Cluster,
    algorithm: Algorithm | None,
) -> Way:
    """The way that NCCL takes, or that for the most bytes where it is faster by measurements: so
    more bytes never take less time.
    """
    candidates = ways(kind, group, cluster)
    if algorithm is not None:
        candidates = tuple(way for way in candidates if way.algorithm == algorithm)
    if not candidates:
        names = sorted({way.algorithm for way in ways(kind, group, cluster)})
        raise UsageError(
            f"No {algorithm} for {kind} of {group.ranks} {cluster.chip.name} on {group.nodes} "
            f"nodes. Choose from: {', '.join(names)}."
        )
    taken = min(candidates, key=lambda way: way.seconds(payload_bytes))
    last = max(candidates, key=lambda way: way.gb_per_s)
    return min((taken, last), key=lambda way: way.measured_s(payload_bytes))
