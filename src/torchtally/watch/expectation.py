"""What a prediction says of every step of a training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtally.ledger import Ledger, account
from torchtally.timing.targets import known_roofline, roofline
from torchtally.trace import Trace
from torchtally.trace.peers import load_peers
from torchtally.views.summary import reserved_bytes_of
from torchtally.views.throughput import throughput
from torchtally.views.utilisation import model_utilisation

STEP_S = "train/step_s"
PEAK = "memory/peak_bytes"
"""Names of values in the log of `tally train`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """A predicted step. None is unknown."""

    file: str
    chip: str | None = None
    step_s: float | None = None
    tokens: int | None = None
    """Of a step, of all ranks."""
    ranks: int = 1
    mfu: float | None = None
    mfu_convention: str = ""
    peak_bytes: int | None = None
    reserved_bytes: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.step_s if self.tokens and self.step_s else None

    def mfu_at(self, step_s: float | None) -> float | None:
        """MFU of a step that takes so long: the same products, counted by the same convention."""
        if self.mfu is None or not self.step_s or not step_s:
            return None
        return self.mfu * self.step_s / step_s


def expected_step(ledger: Ledger, file: str) -> ExpectedStep:
    """That of a ledger: its reported step, and the memory of the whole run."""
    speed, utilisation = throughput(ledger), model_utilisation(ledger)
    steps = ledger.reported_period.steps
    tokens = None
    if speed is not None and speed.tokens is not None:
        tokens = speed.tokens.size * (speed.data_parallel_ranks or 1) // speed.steps
    return ExpectedStep(
        file=file,
        chip=ledger.trace.chip if ledger.roofline is None else ledger.roofline.chip.name,
        step_s=ledger.step_s / steps if ledger.step_s and steps else None,
        tokens=tokens,
        ranks=max(ledger.trace.world.size, 1),
        mfu=None if utilisation is None else utilisation.fraction,
        mfu_convention="" if utilisation is None else utilisation.convention,
        peak_bytes=ledger.memory.peak_bytes if ledger.knows_memory else None,
        reserved_bytes=reserved_bytes_of(ledger) if ledger.knows_memory else None,
    )


def ledger_of(trace: Trace, gpu: str | None = None, path: str = "") -> Ledger:
    """The trace's account, on this GPU where one is named; its file has other ranks' beside it.

    Raises UnknownChipError.
    """
    timing = known_roofline(trace.chip) if gpu is None else roofline(gpu)
    return account(trace, roofline=timing, peers=load_peers(trace, path) if path else ())


def logged_expectation(predicted: Mapping[str, Any], file: str) -> ExpectedStep | None:
    """That which `tally train` wrote into its log before the first step; None without any."""
    step_s, peak = predicted.get(STEP_S), predicted.get(PEAK)
    if not isinstance(step_s, int | float) or isinstance(step_s, bool) or not step_s > 0:
        step_s = None
    if not isinstance(peak, int) or isinstance(peak, bool) or peak <= 0:
        peak = None
    if step_s is None and peak is None:
        return None
    return ExpectedStep(
        file=file, step_s=None if step_s is None else float(step_s), peak_bytes=peak
    )
