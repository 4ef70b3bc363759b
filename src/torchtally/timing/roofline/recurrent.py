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
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import KERNEL_S, bound_kernel
from torchtally.timing.roofline.products import Product, product_dtype, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost

STEP_KERNELS = 2
"""The product of the hidden state, and the gates."""


def recurrent_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Compute, or memory where reading the hidden state's weights again takes longer."""
    S, B = steps_and_sequences(call)
    is_backward = "backward" in call.name
    compute_s = memory_s = overhead_s = 0.0
    bandwidth = bandwidth_bytes_per_s(chip)
    for weight, is_hidden in matrices(call):
        rows, columns = weight.shape
        dtype, itemsize_bytes = product_dtype(call, weight)
        at_once = Product(1, S * B, rows, columns, dtype, itemsize_bytes)
        one_step = Product(1, B, rows, columns, dtype, itemsize_bytes)
        if is_hidden:
            step_s, _ = product_s(one_step, chip)
            compute_s += S * step_s
            memory_s += S * weight.bytes / bandwidth
            overhead_s += S * STEP_KERNELS * KERNEL_S
        else:
            found_s, launches = product_s(at_once, chip)
            compute_s += found_s
            overhead_s += launches * KERNEL_S
        if is_backward and wants_weights(call):
            over_time = Product(1, rows, columns, S * B, dtype, itemsize_bytes)
            found_s, launches = product_s(over_time, chip)
            compute_s += found_s
            overhead_s += launches * KERNEL_S
    memory_s = max(memory_s, cost.bytes / bandwidth)
    return bound_kernel(compute_s=compute_s, memory_s=memory_s, overhead_s=overhead_s)


def wants_weights(call: Call) -> bool:
    flags = call.literal("output_mask")
    return bool(flags[3]) if isinstance(flags, tuple) and len(flags) > 3 else True


def steps_and_sequences(call: Call) -> tuple[int, int]:
    """(S, B). Packed sequences: as many steps as the longest has, the mean of sequences in each."""
    shape = call.inputs[0].shape
    sizes = call.literal("batch_sizes")
    if isinstance(sizes, tuple) and sizes:
        return len(sizes), max(1, -(-shape[0] // len(sizes)))
    if len(shape) < 3:
        return 1, max(1, shape[0] if len(shape) == 2 else 1)
    first, second = shape[0], shape[1]
    return (second, first) if call.literal("batch_first") is True else (first, second)


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
