"""Copies between host and device: over the host's link, bound TRANSFER.

A copy over PCIe waits for a link outside the chip, as a collective does: faster memory or
arithmetic would not help, a faster link would.
"""

from torchtally.chips import Chip
from torchtally.timing.constants import (
    COPY_LATENCY_S,
    PAGEABLE_BYTES_PER_S,
    PAGEABLE_OF_PINNED,
    PINNED_SHARE,
)
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost


def is_host_copy(call: Call) -> bool:
    """One side is on the host, the other on the device. A number on the host (a 0-d tensor that a
    kernel takes as an argument) is no copy.
    """
    specs = (*call.inputs, *call.outputs)
    return any(not spec.is_on_device for spec in specs) and any(s.is_on_device for s in specs)


def host_copy_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """The bytes on the host's side over the link, pinned or not, and the latency.

    A chip whose host link no source gives copies at the speed of its memory, which no copy exceeds:
    a lower bound (and the truth where host and device share one memory).
    """
    host = host_side(call)
    moved_bytes = sum(spec.bytes for spec in host)
    memory_s = cost.bytes / bandwidth_bytes_per_s(chip)
    link = chip.host_link
    if link is None or link.bytes_per_s_per_direction is None:
        return bound_kernel(memory_s=memory_s, overhead_s=COPY_LATENCY_S)
    speed = link.bytes_per_s_per_direction * PINNED_SHARE
    if not all(spec.is_pinned for spec in host):
        speed = min(PAGEABLE_OF_PINNED * speed, PAGEABLE_BYTES_PER_S)
    return bound_kernel(
        memory_s=memory_s, transfer_s=moved_bytes / speed, overhead_s=COPY_LATENCY_S
    )


def host_side(call: Call) -> list[TensorSpec]:
    """The tensors on the host: those read, otherwise those written."""
    came_in = [spec for spec in call.inputs if not spec.is_on_device]
    return came_in or [spec for spec in call.outputs if not spec.is_on_device]
