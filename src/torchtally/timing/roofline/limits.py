"""From the times that an operator's resources take to the time of the operator, and its bound."""

from torchtally.timing.roofline.kernel import Bound, Kernel

KERNEL_S = 2e-6
"""An estimate: what a kernel takes at least, from its start to its end, however little it does.

NVIDIA's "Getting Started with CUDA Graphs" measures 2.9 us on a V100 for a kernel that scales half
a million floats. These 4 MB fit into the L2 cache, which gives 2048 bytes per clock: 1.3 us, so 1.6
are the kernel's own. PyTorch's Nonzero.cu calls its kernel of one block "a separate 2 us kernel".
It comes on top of the time for bytes, which gives small kernels their low efficiency:
bytes / (bytes + bandwidth * KERNEL_S).
"""

NOTHING = Kernel(0.0, Bound.OVERHEAD)
"""No kernel runs."""


def bound_kernel(
    *, compute_s: float = 0.0, memory_s: float = 0.0, network_s: float = 0.0, overhead_s: float
) -> Kernel:
    """Compute, memory and network overlap: the slowest counts. The overhead comes on top.

    The bound is whichever of these two is larger.
    """
    work_s, bound = max(
        (compute_s, Bound.COMPUTE),
        (memory_s, Bound.MEMORY),
        (network_s, Bound.NETWORK),
        key=lambda limit: limit[0],
    )
    return Kernel(work_s + overhead_s, bound if work_s >= overhead_s else Bound.OVERHEAD)
