"""The ranks of one collective, as a network sees them: how many, on how many nodes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate, spread over nodes as evenly as their number allows."""

    ranks: int
    nodes: int = 1

    def __post_init__(self) -> None:
        assert 1 <= self.nodes <= self.ranks, f"{self.ranks} ranks on {self.nodes} nodes"

    @property
    def per_node(self) -> int:
        """Ranks of the emptiest node: the slowest node sets the pace of all."""
        return self.ranks // self.nodes

    @classmethod
    def of_ranks(cls, ranks: Iterable[int], node_size: int) -> "RankGroup":
        """Group of these ranks when each node is filled before the next.

        A group whose fullest node has more ranks than `per_node` says is taken as an even one.
        """
        on_node = Counter(rank // node_size for rank in ranks)
        return cls(on_node.total(), len(on_node))

    @classmethod
    def with_stride(cls, ranks: int, stride: int, node_size: int) -> "RankGroup":
        """So many ranks, each `stride` away from the next: as many in a node as fit evenly."""
        room = max(1, node_size // stride)
        per_node = max(n for n in range(1, min(room, ranks) + 1) if ranks % n == 0)
        return cls(ranks, ranks // per_node)
