"""What a recorder tells of a run while it goes on, and whom."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torchtally.trace import Call, Op, Site, StreamWait
from torchtally.tracer.placeholder_reads import Read


class Timekeeper(Protocol):
    """What is told of a run while it goes on."""

    def advance(
        self,
        calls: Sequence[Call],
        ops: Sequence[Op],
        waits: Sequence[int],
        tick: int,
        stream_waits: Sequence[StreamWait],
    ) -> None:
        """All that has run up to a tick, what was told before included."""


class Bookkeeper(Protocol):
    """What accounts for a run while it goes on."""

    def take(
        self,
        calls: Sequence[Call],
        sites: Sequence[Site],
        ops: Sequence[Op],
        placeholders: Mapping[Read, int],
    ) -> None:
        """All that has run so far, what was told before included."""
