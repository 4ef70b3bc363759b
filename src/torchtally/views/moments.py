"""When: the training step, phase, line and module of a tick."""

import posixpath
from bisect import bisect_right
from dataclasses import dataclass

from torchtally.ledger import Ledger, Line, Path, line_of, module_of
from torchtally.trace import Phase

GENERATING = frozenset({Phase.PREFILL, Phase.DECODE})
"""Of a run that takes no steps."""


@dataclass(frozen=True, slots=True)
class RunMoment:
    """A tick of a run as a person would name it."""

    tick: int
    step: int
    """Counted from one; what runs after the last completed step is in the one after it."""
    phase: str
    line: Line | None
    module: Path

    def __str__(self) -> str:
        """Text like "step 2, backward of model.py:41"."""
        where = f" of {posixpath.basename(self.line.file)}:{self.line.line}" if self.line else ""
        step = "" if self.phase in GENERATING else f"step {self.step}, "
        return f"{step}{self.phase}{where}"


def moment_at(ledger: Ledger, tick: int) -> RunMoment | None:
    """The moment of the operator that runs at a tick, or did last; None where none ever ran."""
    entries = ledger.entries
    if not entries:
        return None
    place = bisect_right(entries, tick, key=lambda entry: entry.op.clock) - 1
    entry = entries[max(place, 0)]
    return RunMoment(
        tick, step_of(ledger, tick), str(entry.op.phase), line_of(entry), module_of(entry)
    )


def step_of(ledger: Ledger, tick: int) -> int:
    """The training step that a tick lies in, from one."""
    return bisect_right(ledger.trace.step_ends, tick) + 1
