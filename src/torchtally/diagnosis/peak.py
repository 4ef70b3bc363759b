"""What is held where a run's memory is fullest, and by what it was allocated."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.ledger import Entry, Ledger, Line, line_of
from torchtally.memory import Category
from torchtally.table import Prose, sentences
from torchtally.trace import Phase, Storage

LEAST_SHARE = 0.05
"""Of the peak: what costs less is not worth a sentence."""


@dataclass(frozen=True)
class HeldStorage:
    """A storage that is alive at the peak."""

    storage: Storage
    category: Category
    maker: Entry | None
    """The operator that allocated it; None of one that ran out of memory."""


@dataclass(frozen=True)
class MemoryPeak:
    """The moment at which a run ran out of memory, else the one at which it held most."""

    ledger: Ledger

    @cached_property
    def tick(self) -> int:
        refusal = self.ledger.trace.final_refusal
        return self.ledger.memory.peak_tick if refusal is None else refusal.tick

    @property
    def bytes(self) -> int:
        """Bytes allocated at most in the run."""
        return self.ledger.memory.peak_bytes

    @cached_property
    def operator(self) -> Entry | None:
        """The operator that runs then, or did last; None before the first."""
        place = bisect_right(self.ledger.entries, self.tick, key=lambda entry: entry.op.clock) - 1
        return self.ledger.entries[place] if place >= 0 else None

    @property
    def phase(self) -> Phase | None:
        return None if self.operator is None else self.operator.op.phase

    @cached_property
    def held(self) -> tuple[HeldStorage, ...]:
        """Every storage that is alive, largest first."""
        makers = {entry.op.clock: entry for entry in self.ledger.entries if entry.is_first}
        alive = self.ledger.memory.alive_at(self.tick)
        return tuple(
            HeldStorage(storage, kind, makers.get(storage.born)) for storage, kind in alive
        )

    def diagnose(
        self,
        rule: str,
        is_cause: Callable[[HeldStorage], bool],
        say: Callable[[int], Prose],
        remedy: str,
        *,
        least_share: float = LEAST_SHARE,
    ) -> Iterator[Diagnosis]:
        """Yield a diagnosis where what is a cause holds enough of the peak: `say` is given its
        bytes. Its line is the one that allocated most.
        """
        causes = [held for held in self.held if is_cause(held)]
        cost_bytes = sum(held.storage.bytes for held in causes)
        if cost_bytes and cost_bytes >= least_share * self.bytes:
            line, share = heaviest_line(causes), cost_bytes / self.bytes
            yield Diagnosis(rule, sentences(say(cost_bytes)), remedy, line, cost_bytes, share)


def heaviest_line(causes: list[HeldStorage]) -> Line | None:
    """The line that allocated most of these."""
    sizes: dict[Line | None, int] = {}
    for held in causes:
        line = None if held.maker is None else line_of(held.maker)
        sizes[line] = sizes.get(line, 0) + held.storage.bytes
    return max(sizes, key=lambda line: sizes[line], default=None)
