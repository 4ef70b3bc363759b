"""The speed of memory: large tensors read and written, and memory that is written first."""

import torch

from torchtally.bench.stopwatch import Stopwatch

LARGE_BYTES = {"cuda": 2**30, "cpu": 2**28}
FRESH_BYTES = 2**26
"""A block that the C library takes from the operating system, and gives back, each time."""


def measured_bandwidth_bytes_per_s(device: torch.device, stopwatch: Stopwatch) -> float:
    """The best of a copy and a triad (STREAM's: a = b + s * c)."""
    n = LARGE_BYTES[device.type] // 4
    a, b, c = (torch.ones(n, device=device) for _ in range(3))
    copy_s = stopwatch.seconds(lambda: a.copy_(b))
    triad_s = stopwatch.seconds(lambda: torch.add(b, c, alpha=3.0, out=a))
    return max(2 * 4 * n / copy_s, 3 * 4 * n / triad_s)


def first_touch_s_per_byte(device: torch.device, stopwatch: Stopwatch) -> float:
    """What writing to new memory takes beyond writing to the same memory again."""
    if device.type == "cuda":
        return 0.0
    n = FRESH_BYTES // 4
    kept = torch.empty(n).fill_(1.0)
    again_s = stopwatch.seconds(lambda: kept.fill_(1.0))
    fresh_s = stopwatch.seconds(lambda: torch.empty(n).fill_(1.0))
    return max(0.0, fresh_s - again_s) / FRESH_BYTES
