"""When: the training step, phase, line and module of a tick."""

import posixpath
from bisect import bisect_right
from dataclasses import dataclass
from itertools import takewhile

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
        """Text like "step 2, backward of model.py:41" or "evaluation after step 1, eval.py:7"."""
        place = f"{posixpath.basename(self.line.file)}:{self.line.line}" if self.line else ""
        if self.phase == Phase.EVALUATION:
            return ", ".join(filter(None, (f"{self.phase} {when(self.step)}", place)))
        step = "" if self.phase in GENERATING else f"step {self.step}, "
        return f"{step}{self.phase}{f' of {place}' * bool(place)}"


def when(step: int) -> str:
    """Text that says when evaluation ran that a training step would have followed, or did."""
    return f"after step {step - 1}" if step > 1 else "before step 1"


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


def step_name(ledger: Ledger, tick: int) -> str:
    """The step that a tick lies in: "step 2", or "after step 2" where the script took no more."""
    step, trace = step_of(ledger, tick), ledger.trace
    is_after = step > len(trace.step_ends) > 0
    return when(step) if is_after and _has_ended_training(ledger) else f"step {step}"


def _has_ended_training(ledger: Ledger) -> bool:
    trace = ledger.trace
    if trace.ending.kind == "exit" or trace.final_refusal is None:
        return trace.ending.kind == "exit"
    last = trace.step_ends[-1]
    after = takewhile(lambda entry: entry.op.clock >= last, reversed(ledger.entries))
    return any(entry.op.phase is Phase.EVALUATION for entry in after)
