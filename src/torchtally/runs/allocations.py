"""What a run allocated, and when: what `tally fit` replays and extrapolates."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.trace import Call


@dataclass(frozen=True, slots=True)
class Allocations:
    """All that a run allocated, and when. Equal for runs that allocated the same."""

    events: Sequence[int]
    """The n-th storage was born: n + 1; it died: -(n + 1); the cache was emptied: 0. Beyond the
    storages: a call took its scratch memory and gave it back, the n-th one: n + 1 beyond."""
    sizes: Sequence[int]
    """Requested bytes."""
    blas: Sequence[int] = ()
    """Storages that are cuBLAS's workspace, whose size depends on the chip."""
    calls: Sequence[Call] = ()
    """Those that may take scratch memory, each one once."""
    uses_streams: bool = False
    """The script has streams of its own; the events do not record which frees wait for which."""
