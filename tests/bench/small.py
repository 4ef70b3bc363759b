"""`tally bench` in seconds: real operators of this machine, small ones of float32 alone."""

from collections.abc import Callable

import pytest
import torch

from torchtally.bench import run
from torchtally.timing.calibration import Calibration

SMALL = run.Effort((torch.float32,), 1.1e7, 0.0, 2**12, 0)
"""The smallest attention has 10.5 million FLOPs."""


def bench_of_small_operators(
    report: Callable[[str, float], None] = lambda name, done: None,
) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "effort", lambda device, is_quick: SMALL)
        return run.bench("cpu", is_quick=False, report=report)
