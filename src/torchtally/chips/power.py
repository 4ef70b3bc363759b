"""The power that a chip draws: the one model of energy, of traced steps and of plans."""

from torchtally.chips.chip import Chip

IDLE_SHARE_OF_POWER = 0.21
"""An estimate: of its rated power, what a GPU draws while a program holds it and nothing runs.

The median of three that users printed with `nvidia-smi` at 0 % use, clocks up (P0): 53 of 300 W on
a V100-SXM (zai-org/GLM-130B issue 32), 145 of 700 W on an H100-SXM (wilicc/gpu-burn issue 114), 110
of 300 W on an A40 (NVIDIA/open-gpu-kernel-modules issue 874). Without a program it is less: 51 of
400 W on an A100-SXM (facebookresearch/vissl issue 422); but that is no part of a training.
"""


def mean_power_watts(tdp_watts: float, busy_share: float = 1.0) -> float:
    """The mean power of a GPU that is at work for this share of the time: an estimate.

    The straight line from idle to rated power of "Power provisioning for a warehouse-sized
    computer" (Fan, Weber, Barroso, ISCA 2007), which was found for whole servers. A kernel that
    waits for memory draws less than one that multiplies, so this is rather too much.
    A GPU that is always at work draws its rated power.
    """
    return tdp_watts * (IDLE_SHARE_OF_POWER + (1 - IDLE_SHARE_OF_POWER) * busy_share)


def power_ratio(chip: Chip, other: Chip) -> float | None:
    """Rated power of a chip over another one's; None where one of them is not known."""
    if chip.tdp_watts is None or other.tdp_watts is None:
        return None
    return chip.tdp_watts / other.tdp_watts
