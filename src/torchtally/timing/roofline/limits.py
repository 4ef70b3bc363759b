"""An operator's time and bound, from the times that its resources take."""

from torchtally.chips import Chip
from torchtally.timing.constants import GAP_S, GRAPH_GAP_S
from torchtally.timing.roofline.kernel import Bound, Kernel

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
