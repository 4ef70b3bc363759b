"""Collectives between the chips of a layout, as quantities with their working.

`timing.network` knows how long each takes, by NCCL's own tuning model. What a chip sends is what it
has to at least: volumes of Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH", sections 4.1 to 4.5.
"""

from dataclasses import dataclass, replace

from torchtally.chips import Cluster
from torchtally.plan.closed_form import Bytes, Chips, Count, Fraction, Number, Seconds, closed_form
from torchtally.plan.parallel.pace import BEST, Pace
from torchtally.plan.quantity import Amount, Quantity, derive, of, total
from torchtally.timing.network import CollectiveKind, RankGroup, Transfer, collective
from torchtally.units import Unit

THAKUR = "Thakur et al. 2005, IJHPCA 19(1)"
NCCL = "NVIDIA/nccl 2.30.7, src/graph/tuning.cc @5067397c"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One collective, or several, as one chip sees them."""

    sent: Quantity
    """Bytes that this chip sends."""
    seconds: Quantity
    messages: float = 0.0
    """Collectives between nodes, one after the other."""
    in_node_s: float = 0.0
    """Of the seconds, those of collectives that were measured, which are all in one node."""

    def at_pace(self, pace: Pace) -> "Traffic":
        """The same in a training: of NCCL's table a share, and each message later."""
        if not self.seconds.value or pace is BEST:
            return self
        seconds = paced_s(self.seconds, self.in_node_s, pace.links, self.messages, pace.message_s)
        return replace(self, seconds=seconds.with_name(self.seconds.name))


@closed_form("communication", Unit.SECONDS)
def paced_s(
    at_best_s: Seconds, in_node_s: Seconds, links: Fraction, messages: Number, message_s: Seconds
) -> str:
    return "in_node_s + (at_best_s - in_node_s) / links + messages * message_s"


def group(ranks: int, stride: int, cluster: Cluster) -> RankGroup:
    """So many chips, each `stride` away from the next: as many of them in a node as fit evenly."""
    return RankGroup.with_stride(ranks, stride, min(cluster.node_size, cluster.count))


def all_reduce(
    payload: Amount, group: RankGroup, cluster: Cluster, *, is_staged: bool = True
) -> Traffic:
    """The sum of all ranks' payload, on every rank."""
    return _among("all_reduce", 2, payload, group, cluster, is_staged=is_staged)


def all_gather(payload: Amount, group: RankGroup, cluster: Cluster) -> Traffic:
    """Every rank's piece on all of them; the payload is all pieces together."""
    return _among("all_gather", 1, payload, group, cluster)


def reduce_scatter(payload: Amount, group: RankGroup, cluster: Cluster) -> Traffic:
    """The sum of all ranks' payload, of which each rank keeps its piece."""
    return _among("reduce_scatter", 1, payload, group, cluster)


def all_to_all(
    payload: Amount, group: RankGroup, cluster: Cluster, *, is_staged: bool = True
) -> Traffic:
    """Traffic from every rank to every other; the payload is what one rank has for all."""
    return _among("all_to_all", 1, payload, group, cluster, is_staged=is_staged)


def send(payload: Amount, *, crosses_nodes: bool, cluster: Cluster) -> Traffic:
    """Traffic from one chip to another."""
    size = of(payload, Unit.BYTES, "payload")
    pair = RankGroup(2, 2 if crosses_nodes else 1)
    return _traffic(size, size, collective("send", int(size.value), pair, cluster))


def nothing(name: str) -> Traffic:
    """What one chip alone sends."""
    return Traffic(derive("sent", Unit.BYTES, "0"), derive(name, Unit.SECONDS, "0"))


def add_up(name: str, traffics: dict[str, Traffic], *, note: str = "") -> Traffic:
    """One after the other."""
    sent = {word: traffic.sent for word, traffic in traffics.items()}
    seconds = {word: traffic.seconds for word, traffic in traffics.items()}
    return Traffic(
        total("sent", Unit.BYTES, sent),
        total(name, Unit.SECONDS, seconds, note=note),
        sum(traffic.messages for traffic in traffics.values()),
        sum(traffic.in_node_s for traffic in traffics.values()),
    )


def repeat(name: str, traffic: Traffic, times: Quantity, note: str = "") -> Traffic:
    """So many times over."""
    sent = derive("sent", Unit.BYTES, "times * each", times=times, each=traffic.sent)
    once = traffic.seconds
    whole = derive(name, Unit.SECONDS, "times * each", "", note, times=times, each=once)
    return Traffic(sent, whole, times.value * traffic.messages, times.value * traffic.in_node_s)


def _among(
    kind: CollectiveKind, rounds: int, payload: Amount, group: RankGroup, cluster: Cluster,
    *, is_staged: bool = True,
) -> Traffic:  # fmt: skip
    """`rounds` is 2 for what is both scattered and gathered, which is an all-reduce."""
    if group.ranks == 1:
        return nothing(_name(kind))
    size = of(payload, Unit.BYTES, "payload")
    sent = _pieces(rounds * (group.ranks - 1), size, group.ranks)
    transfer = collective(kind, int(size.value), group, cluster, is_staged=is_staged)
    return _traffic(sent, size, transfer)


def _traffic(sent: Quantity, payload: Quantity, transfer: Transfer) -> Traffic:
    seconds = derive(
        _name(transfer.kind),
        Unit.SECONDS,
        "latency_s + payload / payload_bytes_per_s",
        NCCL,
        transfer.way.removeprefix("pairwise").strip(),
        latency_s=of(transfer.latency_s, Unit.SECONDS, "latency"),
        payload=payload,
        payload_bytes_per_s=of(transfer.payload_bytes_per_s, Unit.BYTE_PER_S, "speed"),
    )
    if transfer.is_measured:
        return Traffic(sent, seconds, in_node_s=seconds.value)
    return Traffic(sent, seconds, messages=1.0)


def _name(kind: CollectiveKind) -> str:
    return kind.replace("_", "-")


@closed_form("sent", Unit.BYTES, THAKUR)
def _pieces(pieces: Count, payload: Bytes, ranks: Chips) -> str:
    """So many of the payload's n pieces."""
    return "pieces * payload / ranks"
