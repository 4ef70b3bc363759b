"""The ranks of a distributed run: which one was traced, and the groups that it communicates in."""

from torchtally.trace.record import Count, Record, Tick


class World(Record, frozen=True):
    """All ranks of a run, one per GPU, and the one that the trace is of.

    Ranks are numbered node by node, as torchrun does.
    """

    size: int = 1
    gpus_per_node: int = 1
    rank: int = 0

    @property
    def local_rank(self) -> int:
        return self.rank % self.gpus_per_node

    @property
    def node(self) -> int:
        return self.rank // self.gpus_per_node

    @property
    def nodes(self) -> int:
        return -(-self.size // self.gpus_per_node)


class ProcessGroup(Record, frozen=True):
    """A process group that the traced rank is in; names are those of torch's flight recorder."""

    name: str
    """`pg_id` there: "0" is the default group."""
    description: str
    """`process_group` there: "default_pg", "mesh_tp"."""
    ranks: tuple[Count, ...]
    """Numbers in the world, in the order of the group."""


class StreamWait(Record, frozen=True):
    """Wait of a stream, from a tick on, for what another had been given before an earlier tick."""

    tick: Tick
    stream: int
    """`HOST` where it is the host that waits."""
    other: int
    until: Tick
    """The other stream's operators of smaller ticks are waited for."""


class Coalesced(Record, frozen=True):
    """Collectives that are issued together, at ticks first <= t < end: one launch of NCCL's."""

    first: Tick
    end: Tick


HOST = -1
COMMUNICATORS = 1 << 16


def communicator_stream(group: int, peer: int | None = None) -> int:
    """The stream on which a group's collectives run, or what two of its ranks send each other.

    A send that is not coalesced with others has a communicator for its two ranks (torch/csrc/
    distributed/c10d/ProcessGroupNCCL.cpp, getKeySendRecv); `peer` is the other's rank in the group.
    """
    return COMMUNICATORS * (1 if peer is None else 2 + peer) + group
