"""Rings through chips that are joined directly: as many as their links have room for."""

from collections.abc import Iterator
from functools import lru_cache

from torchtally.chips.meshes import Mesh

Hop = tuple[int, int]
Room = dict[Hop, int]


@lru_cache(maxsize=64)
def rings(mesh: Mesh, ranks: int) -> int:
    """Rings of one link each through the first chips of a node, both directions counted.

    Where no ring is found, two chips without a link reach each other through a third, over links
    of both (NCCL's path NVB, which its search tries next). 0: there is none either way.
    """
    room = {
        (one, other): mesh.between(one, other)
        for one in range(ranks)
        for other in range(ranks)
        if mesh.between(one, other)
    }
    cycles = list(_cycles(room, ranks, are_detours_allowed=False))
    cycles = cycles or list(_cycles(room, ranks, are_detours_allowed=True))
    return _most(cycles, room, mesh.links_per_chip)


def _cycles(room: Room, ranks: int, *, are_detours_allowed: bool) -> Iterator[tuple[Hop, ...]]:
    """All ways round, each as the links that it takes."""

    def paths(one: int, other: int) -> Iterator[tuple[Hop, ...]]:
        if (one, other) in room:
            yield ((one, other),)
        elif are_detours_allowed:
            for third in range(ranks):
                if (one, third) in room and (third, other) in room:
                    yield (one, third), (third, other)

    def further(order: tuple[int, ...], hops: tuple[Hop, ...]) -> Iterator[tuple[Hop, ...]]:
        ends = [chip for chip in range(1, ranks) if chip not in order]
        for chip in ends or [0]:
            for path in paths(order[-1], chip):
                if ends:
                    yield from further((*order, chip), hops + path)
                else:
                    yield hops + path

    yield from further((0,), ())


def _most(cycles: list[tuple[Hop, ...]], room: Room, limit: int) -> int:
    """How many of them fit beside each other; no chip has links for more than the limit."""
    best = 0
    for at, hops in enumerate(cycles):
        if best >= limit:
            break
        left = dict(room)
        for hop in hops:
            left[hop] -= 1
        if min(left.values()) >= 0:
            best = max(best, 1 + _most(cycles[at:], left, limit - 1))
    return best
