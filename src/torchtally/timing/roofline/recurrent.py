"""Recurrent networks: products over time, one step after the other.

S: steps.  B: sequences.  G*H: gates times hidden size.  I: input size.

cuDNN multiplies the inputs of all steps at once, and the hidden state step by step, since each
step needs the one before (Appleyard et al., "Optimizing Performance of Recurrent Neural Networks
on GPUs", arXiv:1604.01946): per layer and direction one (S*B, I) @ (I, G*H), then S times
(B, H) @ (H, G*H) and a kernel for the gates. The weights of the hidden state are read at every
step, from the L2 cache where they fit in it, which is not modelled as faster. Layers that run
side by side in a wavefront (the same paper) are not modelled: layers run in turn.
Backward of the inputs is as long as forward; of the weights, one product over all steps each.
"""

from torchtally.chips import Chip
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.launches import steps_and_sequences
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.products import Product, product_dtype, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost
from torchtally.work.rule import mask

STEP_KERNELS = 2
"""The product of the hidden state, and the gates."""


def recurrent_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Compute, or memory where reading the hidden state's weights again takes longer."""
    S, B = steps_and_sequences(call)
    gives_weights = "backward" in call.name and all(mask(call, "output_mask", 4)[3:])
    compute_s = memory_s = overhead_s = 0.0
    bandwidth = bandwidth_bytes_per_s(chip)
    for weight, is_hidden in matrices(call):
        rows, columns = weight.shape
        dtype, itemsize_bytes = product_dtype(call, weight)
        over_time = []
        if is_hidden:
            step_s, _ = product_s(Product(1, B, rows, columns, dtype, itemsize_bytes), chip)
            compute_s += S * step_s
            memory_s += S * weight.bytes / bandwidth
            overhead_s += S * STEP_KERNELS * KERNEL_S
        else:
            over_time.append(Product(1, S * B, rows, columns, dtype, itemsize_bytes))
        if gives_weights:
            over_time.append(Product(1, rows, columns, S * B, dtype, itemsize_bytes))
        for product in over_time:
            product_seconds, launches = product_s(product, chip)
            compute_s += product_seconds
            overhead_s += launches * KERNEL_S
    memory_s = max(memory_s, cost.bytes / bandwidth)
    return bound_kernel(compute_s=compute_s, memory_s=memory_s, overhead_s=overhead_s)


def matrices(call: Call) -> list[tuple[TensorSpec, bool]]:
    """Weight matrices, and whether each multiplies the hidden state (else the layer's inputs).

    cuDNN's list holds, for every layer and direction, the inputs' matrix, then the hidden state's,
    then a projection's, which runs at every step too.
    """
    listed = call.tensors("weight") or call.tensors("params")
    per_layer = call.literal("weight_stride0")
    if not listed:
        names = ("weight1", "weight2", "w_ih", "w_hh")
        listed = tuple(spec for name in names for spec in call.tensors(name))
    if not isinstance(per_layer, int) or per_layer < 1:
        per_layer = 4 if any(len(spec.shape) == 1 for spec in listed) else 2
    return [
        (spec, place % per_layer != 0) for place, spec in enumerate(listed) if len(spec.shape) == 2
    ]
