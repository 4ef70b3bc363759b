"""Nodes whose chips are joined directly, without a switch: how many links each pair has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Links between chips, by their numbers in the node; the same in both directions."""

    name: str
    links: Mapping[Pair, int] = field(hash=False)
    """By pairs, the lower number first."""
    links_per_chip: int
    source: str

    def between(self, one: int, other: int) -> int:
        """Links that join two chips; 0: they reach each other through a third."""
        return self.links.get((min(one, other), max(one, other)), 0)


HYBRID_CUBE = Mesh(
    "hybrid cube",
    {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
        (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    },
    links_per_chip=6,
    source="nvidia-smi topo -m of a DGX-1 with V100, as its users print it; figure 4 of "
    "images.nvidia.com/content/pdf/dgx1-v100-system-architecture-whitepaper.pdf",
)  # fmt: skip

MESHES = {mesh.name: mesh for mesh in (HYBRID_CUBE,)}
