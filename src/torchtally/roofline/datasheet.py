"""The time of an operator on a GPU, from the chip's data sheet and published measurements.

Nothing here was fitted to the rows of `benchmarks/published_times.py`, which hold the model against
what others measured. A calibration of the real device goes over it (`calibrated.py`).

For every call: seconds >= FLOPs really computed / the promised dense peak, and more work of the
same kind never takes less.
"""

from collections.abc import Callable

from torchtally.cost import Cost, Kind
from torchtally.hardware import Chip
from torchtally.record import Call
from torchtally.roofline.attention import attention_kernel
from torchtally.roofline.collectives import collective_kernel
from torchtally.roofline.convolutions import convolution_kernel
from torchtally.roofline.copies import host_copy_kernel, is_host_copy
from torchtally.roofline.kernel import Kernel
from torchtally.roofline.launches import launches
from torchtally.roofline.limits import NOTHING
from torchtally.roofline.products import product_kernel
from torchtally.roofline.recurrent import recurrent_kernel
from torchtally.roofline.streaming import streaming_kernel

__all__ = ["datasheet_kernel", "launches"]

Model = Callable[[Call, Cost, Chip], Kernel]

FAMILIES: dict[Kind, Model] = {
    Kind.PRODUCT: product_kernel,
    Kind.ATTENTION: attention_kernel,
    Kind.CONVOLUTION: convolution_kernel,
    Kind.RECURRENT: recurrent_kernel,
    Kind.COMMUNICATION: collective_kernel,
}
"""Every other kind goes by bytes."""


def datasheet_kernel(call: Call, kind: Kind, cost: Cost, chip: Chip) -> Kernel:
    """How long this call takes on the chip by itself, and what bounds it.

    Views and metadata take nothing. What nobody counted takes 0 s as well: it is unknown, and
    listed as uncounted elsewhere. Raises UsageError where the chip lacks a number that the time
    depends on: no peak for products at all, no speed of a link.
    """
    if kind.is_free or kind is Kind.UNCOUNTED:
        return NOTHING
    if kind is Kind.COPY and is_host_copy(call):
        return host_copy_kernel(call, cost, chip)
    if kind in FAMILIES:
        return FAMILIES[kind](call, cost, chip)
    return streaming_kernel(call, kind, cost, chip)
