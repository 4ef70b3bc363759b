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
    """From a tick on, a stream waits for what another had been given before an earlier tick."""

    tick: Tick
    stream: int
    """`HOST` where it is the host that waits."""
    other: int
    until: Tick
    """The other stream's operators of smaller ticks are waited for."""


HOST = -1
COMMUNICATORS = 1 << 16
"""ProcessGroup n's communicator runs its collectives on the stream of number COMMUNICATORS + n."""
