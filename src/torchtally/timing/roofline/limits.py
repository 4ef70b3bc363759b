"""An operator's time and bound, from the times that its resources take."""

from torchtally.chips import Chip
from torchtally.timing.roofline.kernel import Bound, Kernel

KERNEL_S = 1.5e-6
"""An estimate: what a kernel takes at least, from its start to its end, however little it does.

NVIDIA's "Getting Started with CUDA Graphs" measures 2.9 us on a V100 for a kernel that scales half
a million floats. These 4 MB fit into the L2 cache, which gives 2048 bytes per clock: 1.3 us, so 1.6
are the kernel's own. On an H100 elementwise kernels of less than 64 KiB take 1.63 us in the median
of a profile of owlv2-large (AMD-AGI/TraceLens, PyTorch 2.6), and 1.35 in that of 420 kinds, 1.63 in
their ninth decile (tests/truth/corpus, PyTorch 2.11).
It comes on top of the time for bytes, which gives small kernels their low efficiency:
bytes / (bytes + bandwidth * KERNEL_S).
"""

GAP_S = 1.1e-6
"""Between the end of a kernel and the start of the next one in the queue, on NVIDIA's GPUs.

NVIDIA's "Getting Started with CUDA Graphs" measures 3.8 us on a V100 from one kernel of 2.9 us to
the next: 0.9. Elementwise kernels of 5 to 100 us that queue on an H100 take 1.1 us more than by
themselves (221 samples of a bench, PyTorch 2.11). Others had no part in it: 1.15 to 1.4 us in the
median between the queued kernels of four inference profiles (AMD-AGI/TraceLens), and of steps in
which an H100 is always behind its host, what is left of them beside their kernels, 1.4 to 2.0 for
each (tests/truth/corpus).
"""

GRAPH_GAP_S = 0.5e-6
"""The same within a CUDA graph: 3.4 us from one of those kernels to the next."""

NOTHING = Kernel(0.0, Bound.OVERHEAD)
"""No kernel runs."""


def gap_s(chip: Chip, *, is_in_graph: bool = False) -> float:
    """What passes before a kernel that queues.

    Nothing on AMD's: a profiled MI300X starts the next kernel at once. Of other vendors' chips it
    is not known, and left out.
    """
    if chip.vendor != "NVIDIA":
        return 0.0
    return GRAPH_GAP_S if is_in_graph else GAP_S


def bound_kernel(
    *,
    compute_s: float = 0.0,
    memory_s: float = 0.0,
    network_s: float = 0.0,
    transfer_s: float = 0.0,
    overhead_s: float,
) -> Kernel:
    """Compute, memory and links overlap: the slowest counts. The overhead comes on top.

    The bound is whichever of these two is larger.
    """
    work_s, bound = max(
        (compute_s, Bound.COMPUTE),
        (memory_s, Bound.MEMORY),
        (network_s, Bound.NETWORK),
        (transfer_s, Bound.TRANSFER),
        key=lambda limit: limit[0],
    )
    return Kernel(work_s + overhead_s, bound if work_s >= overhead_s else Bound.OVERHEAD)
