"""A kernel whose FLOPs on tensor cores the script declares, and nothing else of it is known."""

from torchtally.chips import Chip
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.rates import achieved_flop_per_s, bandwidth_bytes_per_s
from torchtally.trace import Call
from torchtally.work import Cost

FLOATS = ("float", "bfloat", "complex")


def matrix_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """A kernel at the rate that large products reach, of the narrowest floats among its
    operands.
    """
    dtype = product_dtype_of(call)
    return bound_kernel(
        compute_s=cost.flops / achieved_flop_per_s(dtype, chip),
        memory_s=cost.bytes / bandwidth_bytes_per_s(chip),
        overhead_s=KERNEL_S,
    )


def product_dtype_of(call: Call) -> str:
    """Sums and scales are wider than what is multiplied. float32 without any."""
    large = [spec for spec in call.inputs if spec.dtype.startswith(FLOATS) and len(spec.shape) > 1]
    return min(large, key=lambda spec: spec.itemsize_bytes).dtype if large else "float32"
