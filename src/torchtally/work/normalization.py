"""Softmax and the layers that bring activations to a mean and a spread.

n: elements of the input.  r: rows, groups or channels that are normalised on their own.

FLOPs per element follow the formula beside each, x being the input, w and b the weight and
bias, g the gradient that comes in, xhat the normalised input; one for each operation, no step
counted twice.
"""

from functools import partial

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, is_set, mask, one_pass, rule, rules


def affine_flops(call: Call) -> int:
    """FLOPs of `* w + b`, where given, for each element."""
    return len(call.tensors("weight")) + len(call.tensors("bias"))


rules(
    Kind.NORMALIZATION,
    # exp(x - max(x)) / sum: compare, subtract, exp, add, divide. So is its logarithm.
    PerElement("_softmax softmax special_softmax _log_softmax log_softmax special_log_softmax", 5),
    PerElement("_masked_softmax _safe_softmax", 6),  # and a compare for the mask
    # y * (g - sum(g * y)), or g - exp(y) * sum(g)
    PerElement("_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward", 4),
    PerElement("batch_norm_backward_reduce", 4, "input"),  # sum(g) and sum(g * (x - mean))
    # w * rstd * (g - mean(g) - (x - mean) * c)
    PerElement("batch_norm_backward_elemt", 6, "input"),
    # A weight split into direction and length (torch.nn.utils.parametrizations.weight_norm).
    # v * (g / norm(v)): square, add, scale
    PerElement("_weight_norm _weight_norm_interface", 3, "v"),
    # (g / norm) * (grad - v * sum(v * grad) / norm^2)
    PerElement("_weight_norm_interface_backward", 5, "grad_w"),
)


def affine_norm(flops: int, call: Call) -> Cost:
    """So many FLOPs for each element, and w and b."""
    return one_pass(call, flops=(flops + affine_flops(call)) * call.tensor("input").elements)


AFFINE = {
    # (x - mean(x)) * rstd(x) * w + b: add; subtract, square, add; scale
    "native_layer_norm layer_norm native_group_norm group_norm instance_norm": 5,
    "_fused_rms_norm rms_norm": 3,  # x * rsqrt(mean(x * x)) * w: square, add, scale
    "batch_norm_elemt": 2,  # (x - mean) * rstd * w + b
}
"""Operators to FLOPs for each element, before w and b."""

for operators, count in AFFINE.items():
    rule(operators, kind=Kind.NORMALIZATION)(partial(affine_norm, count))


def centered_backward(call: Call, flags: tuple[bool, ...]) -> int:
    """FLOPs per element of the gradients of x, w and b wanted.

    xhat = (x - mean) * rstd: 2, once for x and w.
    x: rstd * (g*w - mean(g*w) - xhat * mean(g*w * xhat)): 7, and 1 with a weight.
    w: sum(g * xhat): 2.  b: sum(g): 1.
    """
    of_input, of_weight, of_bias = flags
    has_weight = bool(call.tensors("weight"))
    xhat = 2 * (of_input or of_weight)
    return xhat + (7 + has_weight) * of_input + 2 * of_weight + of_bias


@rule("native_layer_norm_backward native_group_norm_backward", kind=Kind.NORMALIZATION)
def layer_norm_backward(call: Call) -> Cost:
    n = call.tensor("input").elements
    flops = centered_backward(call, mask(call, "output_mask", 3)) * n
    return one_pass(call, flops=flops, unread=("bias",))


@rule("_fused_rms_norm_backward", kind=Kind.NORMALIZATION)
def rms_norm_backward(call: Call) -> Cost:
    """FLOPs per element of the gradients wanted.

    xhat = x * rstd: 1, once for x and w.
    x: rstd * (g*w - xhat * mean(g*w * xhat)): 5, and 1 with a weight.
    w: sum(g * xhat): 2.
    """
    of_input, of_weight = mask(call, "output_mask", 2)
    has_weight = bool(call.tensors("weight"))
    per_element = (of_input or of_weight) + (5 + has_weight) * of_input + 2 * of_weight
    return one_pass(call, flops=per_element * call.tensor("input").elements)


# Batch normalisation.

RUNNING = ("running_mean", "running_var")


def batch_norm_cost(call: Call, flops: int, *, is_training: bool) -> Cost:
    """Training reads and writes the running statistics, even where the schema hides the write."""
    rest = one_pass(call, flops=flops, unread=RUNNING, unwritten=RUNNING)
    running = [spec for name in RUNNING for spec in call.tensors(name) if spec.is_on_device]
    statistics = sum(spec.bytes for spec in running)
    return rest + Cost(bytes_read=statistics, bytes_written=statistics * is_training)


@rule(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit batch_norm"
    " _batch_norm_impl_index _native_batch_norm_legit_no_training _batch_norm_no_update"
    " _batch_norm_with_update _native_batch_norm_legit_functional"
    " _batch_norm_with_update_functional",
    kind=Kind.NORMALIZATION,
)
def batch_norm(call: Call) -> Cost:
    """Training as layer_norm, 5n and w and b; else by the running statistics, 2n and w and b."""
    is_training = "with_update" in call.name or is_set(call, "training")
    per_element = (5 if is_training else 2) + affine_flops(call)
    updates = is_training and not call.name.endswith("_functional")
    flops = per_element * call.tensor("input").elements
    return batch_norm_cost(call, flops, is_training=updates)


@rule(
    "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward"
    " batch_norm_backward",
    kind=Kind.NORMALIZATION,
)
def batch_norm_backward(call: Call) -> Cost:
    """Cost as layer_norm's, also where running statistics make x's gradient g * w * rstd alone."""
    n = call.tensor("input").elements
    flops = centered_backward(call, mask(call, "output_mask", 3)) * n
    return one_pass(call, flops=flops, unread=RUNNING)


# Batch normalisation across devices (nn.SyncBatchNorm) runs in pieces.


@rule("batch_norm_stats batch_norm_update_stats", kind=Kind.NORMALIZATION)
def batch_norm_stats(call: Call) -> Cost:
    """Mean and spread: add; subtract, square, add: 4n."""
    flops = 4 * call.tensor("input").elements
    return batch_norm_cost(call, flops, is_training=call.name.endswith("update_stats"))


@rule("batch_norm_gather_stats batch_norm_gather_stats_with_counts", kind=Kind.NORMALIZATION)
def batch_norm_gather_stats(call: Call) -> Cost:
    """Merging the devices' means and spreads: about 6 for each. The input gives a dtype only."""
    flops = 6 * call.tensor("mean").elements
    rest = one_pass(call, flops=flops, unread=("input", *RUNNING), unwritten=RUNNING)
    statistics = sum(spec.bytes for name in RUNNING for spec in call.tensors(name))
    return rest + Cost(bytes_read=statistics, bytes_written=statistics)
