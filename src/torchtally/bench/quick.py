"""The best rate of float32 products on this CPU, in a tenth of a second: what an MFU is of where
`tally bench` has not measured more.
"""

import time
from collections.abc import Callable

import torch

SIDE, TIMES = 768, 6
"""Of a product that is too large for calls and too small for noise to matter, and how often."""


def product_flop_per_s(clock: Callable[[], float] = time.perf_counter) -> float:
    """The best of some products, with the threads that torch has."""
    with torch.random.fork_rng(devices=[]):
        left, right = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    seconds = []
    for _ in range(TIMES):
        begun_s = clock()
        left @ right
        seconds.append(clock() - begun_s)
    return 2 * SIDE**3 / min(seconds)
