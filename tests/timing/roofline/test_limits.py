"""Resources overlap, overhead does not, and the larger of the two is the bound."""

from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.limits import NOTHING, bounded


def test_the_slowest_resource_counts_and_overhead_is_added() -> None:
    found = bounded(compute_s=3.0, memory_s=5.0, overhead_s=1.0)
    assert found == Kernel(6.0, Bound.MEMORY)


def test_each_bound() -> None:
    assert bounded(compute_s=2.0, overhead_s=1.0).bound is Bound.COMPUTE
    assert bounded(network_s=2.0, memory_s=1.0, overhead_s=0.0).bound is Bound.NETWORK
    assert bounded(memory_s=1.0, overhead_s=2.0).bound is Bound.OVERHEAD


def test_nothing_takes_nothing() -> None:
    assert NOTHING.seconds == 0.0
