"""How long the script's own code takes beside a step."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from statistics import median_low

from torchtally.ledger import Ledger
from torchtally.trace import Frame


@dataclass(frozen=True, slots=True)
class ScriptWorkOfStep:
    """Seconds of the processor of the machine that simulated the run."""

    script_s: float
    """All of a step."""
    frame: Frame | None
    """The user's line before which most of it is."""
    step_s: float

    @property
    def is_slower(self) -> bool:
        """The real run would wait for it."""
        return self.script_s > self.step_s


def script_work(ledger: Ledger) -> ScriptWorkOfStep | None:
    """None where no step but the first was run, which has all before it: imports, data sets,
    models. Of a run that a profiler measured, it is in the times.
    """
    trace, step_s = ledger.trace, ledger.step_s
    if ledger.reported_period.step is None or not step_s or ledger.is_measured:
        return None
    by_step = [0.0] * (len(trace.step_ends) - 1)
    by_frame: defaultdict[Frame | None, float] = defaultdict(float)
    for work in trace.script_work:
        step = bisect_right(trace.step_ends, work.tick)
        if 0 < step <= len(by_step):
            by_step[step - 1] += work.seconds
            by_frame[work.frame] += work.seconds
    script_s = median_low(by_step) if by_step else 0.0
    if not script_s:
        return None
    return ScriptWorkOfStep(script_s, max(by_frame, key=by_frame.__getitem__), step_s)
