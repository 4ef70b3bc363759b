"""Resources overlap, overhead does not, and the larger of the two is the bound."""

from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.limits import NOTHING, bound_kernel


def test_the_slowest_resource_counts_and_overhead_is_added() -> None:
    bounded = bound_kernel(compute_s=3.0, memory_s=5.0, overhead_s=1.0)
    assert bounded == Kernel(6.0, Bound.MEMORY)


def test_each_bound() -> None:
    assert bound_kernel(compute_s=2.0, overhead_s=1.0).bound is Bound.COMPUTE
    assert bound_kernel(network_s=2.0, memory_s=1.0, overhead_s=0.0).bound is Bound.NETWORK
    assert bound_kernel(transfer_s=2.0, memory_s=1.0, overhead_s=0.0).bound is Bound.TRANSFER
    assert bound_kernel(memory_s=1.0, overhead_s=2.0).bound is Bound.OVERHEAD


def test_nothing_takes_nothing() -> None:
    assert NOTHING.seconds == 0.0
