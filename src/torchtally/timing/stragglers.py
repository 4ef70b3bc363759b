"""GPUs of one type are not alike, and who trains together goes at the pace of the slowest.

"8 % (max 22 %) average performance variation even though the GPU architecture and vendor SKU are
identical within each cluster" (Sinha et al., "Not All GPUs Are Created Equal", SC22,
arXiv:2208.11035: five computing centers, 18,800 hours): between the whiskers of their box plots,
which in a normal distribution are 5.4 standard deviations apart. What a host does in between, and
GPUs that are ill, come on top.
"""

from functools import lru_cache
from statistics import NormalDist

from torchtally.timing.constants import VARIATION, WHISKERS

DEVIATION = VARIATION / WHISKERS
"""Of the time that one of many alike GPUs takes for the same kernels, over their mean."""


@lru_cache
def slowest_of(count: int) -> float:
    """How many times the mean the slowest of so many is expected to take.

    The largest of n normal deviates, by Blom's approximation ("Statistical Estimates and
    Transformed Beta-Variables", 1958), 5 % high for 2, and less for more.
    """
    if count < 2:
        return 1.0
    # Of the lower tail: one less a small share would be rounded to one.
    return 1.0 - DEVIATION * NormalDist().inv_cdf(0.625 / (count + 0.25))
