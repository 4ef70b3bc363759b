"""Chips for tests on which every operator takes as long as the test says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchtally.chips import Chip, chip
from torchtally.errors import UsageError
from torchtally.timing.calibration import Calibration, Issue
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.trace import Call
from torchtally.work import Cost, Kind

H100 = chip("H100-SXM")
DATASHEET = Roofline(H100)
"""By the data sheet, whatever was measured on this machine."""

MS = 1e-3
AT_ONCE = Issue(forward_s=0.0, backward_s=0.0, optimizer_s=0.0, view_s=0.0, launch_s=0.0)


@dataclass(frozen=True)
class Stopwatch(Roofline):
    """So many seconds and such a bound for each operator by its name; a millisecond of compute for
    all others that are counted. The host takes no time to issue them, unless told, and one follows
    another at once.
    """

    kernels: Mapping[str, Kernel] = field(default_factory=dict, hash=False)
    issuing: Issue = AT_ONCE

    @property
    def issue(self) -> Issue:
        return self.issuing if self.host is None else self.host.issue

    def gap_s(self, call: Call, kind: Kind, cost: Cost) -> float:
        return 0.0

    def kernel(self, call: Call, kind: Kind, cost: Cost) -> Kernel:
        if kind is Kind.UNCOUNTED:
            return Kernel(0.0, Bound.OVERHEAD)
        kernel = self.kernels.get(call.name, Kernel(MS, Bound.COMPUTE))
        if kernel.seconds < 0:
            raise UsageError(f"nobody knows how long {call.name} takes")
        return kernel


NOBODY_KNOWS = Kernel(-1.0, Bound.COMPUTE)


def stopwatch(
    on: Chip = H100,
    *,
    host: Issue = AT_ONCE,
    calibration: Calibration | None = None,
    **kernels: Kernel,
) -> Stopwatch:
    """Kernels by their operators' names without "aten."."""
    named = {f"aten.{name}": kernel for name, kernel in kernels.items()}
    return Stopwatch(on, calibration, kernels=named, issuing=host)


def without_peak(dtype: str) -> Chip:
    return replace(H100, name="Half", peaks={k: v for k, v in H100.peaks.items() if k != dtype})
