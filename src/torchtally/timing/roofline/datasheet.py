"""The time of an operator on a GPU, from the chip's data sheet and published measurements.

Every constant has a source of its own. `benchmarks/published_times.py` holds the model against what
others measured; no constant was fitted to its rows. A calibration of the real device goes over the
model (`calibrated.py`).

Two laws hold for every call. It takes no less than its FLOPs at the promised dense peak of its
dtype (a fused causal attention: than half of them). And twice the work never takes less time:
twice M, N, K, batch, tokens or elements, where rows are aligned to 16 bytes before and after.
"""

from collections.abc import Callable

from torchtally.chips import Chip
from torchtally.timing.roofline.attention import attention_kernel
from torchtally.timing.roofline.collectives import Communicators, collective_kernel
from torchtally.timing.roofline.convolutions import convolution_kernel
from torchtally.timing.roofline.copies import host_copy_kernel, is_host_copy
from torchtally.timing.roofline.declared import matrix_kernel
from torchtally.timing.roofline.fused import fused_kernel
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.launches import launches
from torchtally.timing.roofline.limits import NOTHING
from torchtally.timing.roofline.products import product_kernel
from torchtally.timing.roofline.recurrent import recurrent_kernel
from torchtally.timing.roofline.streaming import streaming_kernel
from torchtally.timing.roofline.templates import is_template, template_kernel
from torchtally.trace import Call
from torchtally.work import Cost, Kind, heart_of

__all__ = ["datasheet_kernel", "launches"]

Model = Callable[[Call, Cost, Chip], Kernel]

FAMILIES: dict[Kind, Model] = {
    Kind.PRODUCT: product_kernel,
    Kind.ATTENTION: attention_kernel,
    Kind.CONVOLUTION: convolution_kernel,
    Kind.RECURRENT: recurrent_kernel,
    Kind.MATRIX_KERNEL: matrix_kernel,
    Kind.FUSED: fused_kernel,
}
"""Every other kind is timed by its bytes."""


def datasheet_kernel(
    call: Call, kind: Kind, cost: Cost, chip: Chip, ranks: Communicators | None = None
) -> Kernel:
    """How long this call takes on the chip by itself, and what bounds it.

    Views and metadata take nothing. An uncounted operator takes 0 s as well: it is unknown, and
    listed as uncounted elsewhere; a script's kernel takes the time of its bytes at least. Raises
    UsageError where the chip lacks a number that the time depends on: no peak for products at all,
    no speed of a link.
    """
    if kind.is_free or (kind is Kind.UNCOUNTED and not cost.bytes):
        return NOTHING
    if kind is Kind.COPY and is_host_copy(call):
        return host_copy_kernel(call, cost, chip)
    if kind is Kind.COMMUNICATION:
        return collective_kernel(call, cost, chip, ranks)
    if kind.is_matmul and is_template(call):
        return template_kernel(call, kind, cost, chip)
    if kind in FAMILIES:
        return FAMILIES[kind](heart_of(call) or call, cost, chip)
    return streaming_kernel(call, kind, cost, chip)
