"""Kernels that a compiler fused: sums one can do by hand on a chip of 1 TB/s and 5 T lanes/s."""

import pytest

from tests.timing.roofline.chips import kernel_of, toy
from torchtally.timing.constants import ISSUED_SHARE, TRITON_S
from torchtally.timing.roofline.fused import INSTRUCTIONS
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call, FusedKernel, Operations, Part

N = 10**6


def fused(bytes_read: int, operations: Operations = ()) -> Call:
    parts = (Part("aten.gelu", (), bytes_read, 0),)
    kernel = FusedKernel("pointwise", parts, operations)
    return Call("inductor.triton_poi_fused_gelu_0", "", (), (), (), False, kernel)


def test_bytes_and_the_kernels_own_time() -> None:
    """12 MB at 1 TB/s, beside which a million additions of 3 TFLOP/s do not count."""
    kernel = kernel_of(fused(12 * N, (("add", N), ("load", 2 * N), ("store", N))), toy())
    assert kernel.seconds == pytest.approx(12e-6 + TRITON_S)
    assert kernel.bound is Bound.MEMORY


def test_special_functions_take_longer_than_their_bytes() -> None:
    """10 TFLOP/s are 5 T multiply-adds a second; 29 instructions for each erf."""
    kernel = kernel_of(fused(4 * N, (("erf", N), ("mul", 3 * N), ("store", N))), toy())
    instructions = (INSTRUCTIONS["erf"] + 3) * N
    assert kernel.seconds == pytest.approx(instructions / (ISSUED_SHARE * 5e12) + TRITON_S)
    assert kernel.bound is Bound.COMPUTE


def test_a_small_kernel_is_bound_by_its_launch() -> None:
    kernel = kernel_of(fused(4, (("add", 1),)), toy())
    assert kernel.seconds == pytest.approx(TRITON_S, rel=1e-3)
    assert kernel.bound is Bound.OVERHEAD


def test_nothing_to_do_takes_nothing() -> None:
    assert kernel_of(fused(0), toy()).seconds == 0.0
