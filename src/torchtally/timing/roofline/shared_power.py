"""What products reach beside kernels that leave them some of the chip's power.

A chip holds its rated power in the mean over many kernels, not in each. One that waits for memory
draws less, and the products around it run at clocks that they could not hold alone:

    seconds of all products at the limit = L - S, and none takes less than without a limit

L: what they take alone, at rated power (`sustained.py`).  S: seconds of rated power that kernels
which wait for memory leave, each its time less its joules over that power.

`sustained.BYTE_FLOPS` is the only constant, a fit to batched products. Whole models had no part in
it: in float32 on an L4 forward passes of BERT and GPT-3 and a training step of GPT-2 come to 0.90
to 1.01 of the measured times, and without this to 1.00 to 1.23; in float16 on an A10 steps of BERT,
ResNet-50 and SSD300 to 0.95 to 1.04, and without it to 1.04 to 1.14 (`benchmarks/single_gpu`).

Only chips with GDDR memory: A100s and H100s of 250 and 350 W show no such effect, and what their
HBM takes is not known. Not modelled: power that an idle chip leaves, limits of power for fused
kernels, and runs of less than a quarter of a second, in which an L4 lets bytes take what they like
(`sustained.BYTE_FLOPS`).
"""

from typing import NamedTuple

from torchtally.chips import Chip
from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, named_peak
from torchtally.timing.roofline.sustained import byte_joules, flop_joules, rated_power_s
from torchtally.trace import Call
from torchtally.work import Cost, Kind

MULTIPLYING = (Kind.PRODUCT, Kind.CONVOLUTION)
"""Whose rates are those of `sustained.py`."""


class Draw(NamedTuple):
    """What one call's kernels take of the chip's power."""

    seconds: float
    """By themselves."""
    least_s: float
    """The same if power was no limit."""
    spared_s: float = 0.0
    """Seconds of rated power that they leave."""

    @property
    def is_at_limit(self) -> bool:
        return self.least_s < self.seconds


def shares_power(chip: Chip) -> bool:
    return chip.tdp_watts is not None and byte_joules(chip) is not None


def product_draw(kernel: Kernel, unlimited: Kernel, call: Call, cost: Cost, chip: Chip) -> Draw:
    """Power that a product or convolution draws on a chip that shares its power."""
    if unlimited.seconds < kernel.seconds:
        return Draw(kernel.seconds, unlimited.seconds)
    dtype, _ = named_peak(call.inputs[-1].dtype, chip)
    return waiting_draw(kernel, chip, cost.flops * (flop_joules(dtype, chip) or 0.0))


def waiting_draw(kernel: Kernel, chip: Chip, joules: float = 0.0) -> Draw:
    """Power of a kernel that is at no limit of power: its memory streams for as long as it takes,
    and `joules` are what it computes.
    """
    if kernel.bound is not Bound.MEMORY:
        return Draw(kernel.seconds, kernel.seconds)
    joules += kernel.seconds * bandwidth_bytes_per_s(chip) * (byte_joules(chip) or 0.0)
    spared_s = max(0.0, kernel.seconds - rated_power_s(joules, chip))
    return Draw(kernel.seconds, kernel.seconds, spared_s)


class SharedPower:
    """What the kernels of a run draw, together."""

    __slots__ = ("_limited_s", "_spared_s")

    def __init__(self) -> None:
        self._limited_s = self._spared_s = 0.0

    def add(self, draw: Draw | None, times: int = 1) -> None:
        """A call's kernels, so often; None where the chip shares no power."""
        if draw is None:
            return
        if draw.is_at_limit:
            self._limited_s += times * draw.seconds
        else:
            self._spared_s += times * draw.spared_s

    @property
    def pace(self) -> float:
        """What products at the limit take beside all the others, over what they take alone."""
        if self._limited_s <= 0:
            return 1.0
        return max(0.0, 1.0 - self._spared_s / self._limited_s)


def seconds_at(pace: float, seconds: float, draw: Draw | None) -> float:
    """Seconds of a call's kernels beside the others."""
    if draw is None or not draw.is_at_limit:
        return seconds
    return max(draw.least_s, pace * seconds)
