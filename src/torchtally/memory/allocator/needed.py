"""What a run that had more memory than a device has needs of one."""

from torchtally.memory.allocator.replay import replay
from torchtally.trace import Trace


class NeededMemory:
    """What a run that had unlimited memory needs of a device."""

    def __init__(self, trace: Trace, peaks: tuple[int, int], device: str) -> None:
        """`peaks`: bytes allocated and reserved with unlimited memory."""
        self.trace, self.peaks, self.device = trace, peaks, device
        self._reserved_bytes: list[int] = []

    def more_than(self, capacity_bytes: int) -> int:
        """Bytes reserved at the peak on about the smallest device that it fits of those that are
        larger than one which it does not fit.

        With unlimited memory an allocator never gives back segments that a growing tensor has
        left behind: their sum may be many times what the run holds.
        """
        known = [reserved for reserved in self._reserved_bytes if reserved > capacity_bytes]
        if known:
            return min(known)
        too_little_bytes = max(self.peaks[0], capacity_bytes)
        enough_bytes = self.peaks[1]
        while enough_bytes - too_little_bytes > TOLERANCE * enough_bytes:
            tried_bytes = (too_little_bytes + enough_bytes) // 2
            replayed = replay(self.trace, device=self.device, capacity_bytes=tried_bytes)
            if replayed.fits:
                enough_bytes = max(replayed.peak_reserved_bytes, too_little_bytes)
            else:
                too_little_bytes = tried_bytes
        self._reserved_bytes.append(enough_bytes)
        return enough_bytes


TOLERANCE = 0.01
"""Of what is needed, to which it is looked for."""
