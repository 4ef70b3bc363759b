"""Private pools: memory set apart for CUDA graphs, which expect it at the same addresses again.

While a capture is underway, or a warm-up for one, requests that it takes are served from its pool.
The pool's segments stay reserved as long as a graph uses it, and no other request gets them; as
`PrivatePool` in c10/cuda/CUDACachingAllocator.cpp.
"""

from collections.abc import Callable, Iterator

from torchtally.memory.allocator.block import Pool

PoolId = tuple[int, int]
"""As `torch.cuda.graph_pool_handle` gives it out."""

Takes = Callable[[int], bool]
"""Whether a request on a stream is served from the pool."""


class PrivatePool:
    """Small and large free blocks of one pool."""

    __slots__ = ("large", "small", "uses")

    def __init__(self, pool_id: PoolId) -> None:
        self.small = Pool(is_small=True, owner=pool_id)
        self.large = Pool(is_small=False, owner=pool_id)
        self.uses = 0
        """Graphs that were captured with it, and captures and warm-ups underway."""


class PrivatePools:
    """Those of one allocator."""

    def __init__(self) -> None:
        self._pools: dict[PoolId, PrivatePool] = {}
        self._underway: list[tuple[PoolId, Takes]] = []

    def begin(self, pool_id: PoolId, takes: Takes) -> None:
        """Serve from a pool what it takes. Raises RuntimeError where that goes on already."""
        if any(each == pool_id for each, _ in self._underway):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        pool = self._pools.setdefault(pool_id, PrivatePool(pool_id))
        pool.uses += 1
        self._underway.append((pool_id, takes))

    def end(self, pool_id: PoolId) -> None:
        self._underway = [each for each in self._underway if each[0] != pool_id]

    def release(self, pool_id: PoolId) -> None:
        """One use less. An unused pool's free segments may go back to the device."""
        self._pools[pool_id].uses -= 1

    @property
    def are_filling(self) -> bool:
        """A capture is underway: what is cached elsewhere cannot be given back meanwhile."""
        return bool(self._underway)

    def taking(self, stream: int) -> PrivatePool | None:
        """The pool that serves a request on a stream now; None: none, the default pools do."""
        for pool_id, takes in self._underway:
            if takes(stream):
                return self._pools[pool_id]
        return None

    def of(self, pool_id: PoolId) -> PrivatePool:
        return self._pools[pool_id]

    def unused_pools(self) -> list[Pool]:
        """Those that no graph uses any more."""
        return [
            part
            for private in self._pools.values()
            if not private.uses
            for part in (private.small, private.large)
        ]

    def __iter__(self) -> Iterator[Pool]:
        for private in self._pools.values():
            yield private.small
            yield private.large
