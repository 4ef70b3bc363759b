"""Whether the script's DataLoaders keep up with its step."""

from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.trace import BatchLoading


@dataclass(frozen=True, slots=True)
class SlowLoading:
    """A DataLoader that takes longer for a batch than a step takes: the real run would wait."""

    loading: BatchLoading
    step_s: float


def slow_loading(ledger: Ledger) -> SlowLoading | None:
    """The slowest, by the clock of the machine that simulated; None where all of them keep up.

    Of a run that a profiler measured, waiting is in the times.
    """
    step_s, loadings = ledger.step_s, ledger.trace.loading
    if not loadings or not step_s or ledger.is_measured:
        return None
    slowest = max(loadings, key=lambda loading: loading.batch_s)
    return SlowLoading(slowest, step_s) if slowest.batch_s > step_s else None
