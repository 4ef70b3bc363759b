"""The ranks of one run, as one of them sees the others."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from torchtally.errors import ScriptError
from torchtally.isolation.natives import TIME
from torchtally.runs.ranks.mailbox import Mailbox
from torchtally.runs.ranks.supervisor import output_of
from torchtally.trace import Trace
from torchtally.trace.peers import load_peers, neighbours, place_of_rank

WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class SimulatedRanks:
    """The ranks that run with this one."""

    mailbox: Mailbox
    trace_place: str
    """Of the first rank, which the others run for, and which waits for their traces."""
    is_first: bool

    def gather(self, trace: Trace, tell: Callable[[str], None]) -> list[Trace]:
        """The traces of the others, when all have ended; of a rank that is not the first: none.

        Raises ScriptError for a rank that left no trace, with its last lines.
        """
        for peer in neighbours(trace):
            self.mailbox.want(peer)
        if not self.is_first:
            return []
        self.mailbox.end(self.mailbox.rank, 0)
        told: list[int] = []
        while not self._have_ended(wanted := self.mailbox.wanted_ranks()):
            if wanted != told:
                told = wanted
                names = ", ".join(map(str, wanted))
                tell(f"simulating rank{'s' * (len(wanted) > 1)} {names}, too")
            TIME.sleep(WAIT_S)
        for rank, code in sorted(self.mailbox.exit_codes().items()):
            if rank in wanted and not os.path.exists(self._place(rank)):
                lines = output_of(self.mailbox, rank)
                raise ScriptError(f"rank {rank} ended with exit code {code}:\n{lines}")
        return load_peers(replace(trace, peers=tuple(wanted)), self.trace_place)

    def failures(self) -> Iterator[tuple[int, str]]:
        """Failures so far of the other ranks: the last lines of their output."""
        for rank, code in sorted(self.mailbox.exit_codes().items()):
            if rank != self.mailbox.rank and code:
                yield rank, output_of(self.mailbox, rank)

    def _have_ended(self, ranks: list[int]) -> bool:
        return self.mailbox.exit_codes().keys() >= set(ranks)

    def _place(self, rank: int) -> str:
        return place_of_rank(self.trace_place, rank)
