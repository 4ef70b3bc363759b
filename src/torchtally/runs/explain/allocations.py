"""What the allocator gave out and took back, on the trace's clock."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from torchtally.profiles import MemoryChange
from torchtally.profiles.profile import DEVICE
from torchtally.trace import Reserved, Storage


class AllocatorEvents:
    """Storages and reserved bytes by the allocator's events, on the trace's clock."""

    def __init__(self, changes: Sequence[MemoryChange], ticks_us: Sequence[float]) -> None:
        self.storages: list[Storage] = []
        self.reserved: list[Reserved] = []
        own = [change for change in changes if change.device >= 0]
        if not own or not ticks_us:
            return
        device = Counter(change.device for change in own).most_common(1)[0][0]
        own = [change for change in own if change.device == device]
        before = own[0].allocated_bytes - own[0].bytes
        alive: dict[int, int] = {}
        sizes: list[int] = []
        births: list[int] = []
        deaths: list[int | None] = []
        # What was held before, and whose blocks are given back under an address not seen here.
        held = max(0, before)
        given_back: list[tuple[int, int]] = []
        reserved = -1
        last = len(ticks_us) - 1
        for change in own:
            tick = max(0, min(last, bisect_left(ticks_us, change.at_us + 1e-9) - 1))
            if change.reserved_bytes != reserved:
                reserved = change.reserved_bytes
                self.reserved.append(Reserved(DEVICE, tick, reserved))
            if change.bytes > 0:
                alive[change.address] = len(sizes)
                sizes.append(change.bytes)
                births.append(tick)
                deaths.append(None)
            elif (row := alive.pop(change.address, None)) is not None:
                deaths[row] = tick
            elif change.bytes < 0:
                given_back.append((tick, -change.bytes))
        for tick, size in given_back:
            size = min(size, held)
            held -= size
            if size:
                self._add(size, 0, tick, EARLIER)
        if held:
            self._add(held, 0, None, EARLIER)
        for size, born, died in zip(sizes, births, deaths, strict=True):
            self._add(size, born, died, "")

    def _add(self, size: int, born: int, died: int | None, name: str) -> None:
        # A block is given back while an operator runs: it is held up to the next one.
        died = None if died is None else max(died, born + 1)
        self.storages.append(Storage(len(self.storages), DEVICE, size, born, died, None, name))


EARLIER = "held before the profiler began"
