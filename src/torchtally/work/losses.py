"""Loss functions.

n: elements of the prediction.  C: classes.  T: rows, each with one target.

FLOPs per element follow the formula beside each; a mean or a sum adds one.
"""

from functools import partial

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.indexing import touch
from torchtally.work.rule import FIRST, Kind, PerElement, integer, one_pass, result, rule, rules

NOT_REDUCED = 0
"""at::Reduction::None; 1 is the mean, the default, 2 the sum."""


def pointwise_loss(flops: int, call: Call) -> Cost:
    """So many FLOPs for each element, one more to add them up, one more with a weight."""
    is_reduced = integer(call, "reduction", 1) != NOT_REDUCED
    per_element = flops + is_reduced + len(call.tensors("weight"))
    return one_pass(call, flops=per_element * call.inputs[0].elements)


POINTWISE = {
    # f(x - t), f a named function
    "mse_loss l1_loss smooth_l1_loss huber_loss": 2,
    "binary_cross_entropy": 8,  # -(t * log(x) + (1 - t) * log(1 - x))
    "kl_div": 3,  # t * (log(t) - x)
    # f(-t * x), f a named function; exp(x) - t * x
    "soft_margin_loss poisson_nll_loss": 3,
    # max(0, margin - x_t + x)
    "multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward": 3,
    "hinge_embedding_loss margin_ranking_loss": 3,
}
"""Operators to FLOPs for each element, before its weight and the reduction."""

for operators, count in POINTWISE.items():
    rule(operators, kind=Kind.LOSS)(partial(pointwise_loss, count))

rules(
    Kind.LOSS,
    # f'(x - t) * grad
    PerElement("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", 3),
    PerElement("soft_margin_loss_backward", 4),  # -t * grad * sigmoid(-t * x)
    PerElement("multi_margin_loss_backward multilabel_margin_loss_backward", 3),
    # two distances: subtract, add eps, a power, add
    PerElement("triplet_margin_loss", 8, FIRST),
    PerElement("cosine_embedding_loss", 6, FIRST),  # three sums of products
)


@rule("binary_cross_entropy_backward", kind=Kind.LOSS)
def binary_cross_entropy_backward(call: Call) -> Cost:
    """`grad * (x - t) / ((1 - x) * x)`: 5n, and 1 with a weight."""
    return one_pass(call, flops=(5 + len(call.tensors("weight"))) * result(call).elements)


@rule("binary_cross_entropy_with_logits", kind=Kind.LOSS)
def binary_cross_entropy_with_logits(call: Call) -> Cost:
    """`(1 - t) * x + max(-x, 0) + log(1 + exp(-abs(x)))`: 10n, and 3 with a weight of positives."""
    return pointwise_loss(10 + 3 * len(call.tensors("pos_weight")), call)


def targets(call: Call) -> int:
    """T."""
    return call.tensor("target").elements


@rule("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d nll_loss_nd", kind=Kind.LOSS)
def nll_loss(call: Call) -> Cost:
    """`-x[target]`, added up: 2T. Reads one of C log-probabilities for each target."""
    return touch(call, table="self", elements=targets(call), flops=2 * targets(call))


@rule("nll_loss_backward nll_loss2d_backward", kind=Kind.LOSS)
def nll_loss_backward(call: Call) -> Cost:
    """Zeros, and one gradient for each target. The prediction's values are not read."""
    return one_pass(call, flops=targets(call), unread=("self",))


@rule("cross_entropy_loss", kind=Kind.LOSS)
def cross_entropy(call: Call) -> Cost:
    """Log-softmax, 5n, and 2T; with class probabilities for targets, as many more as there are."""
    return one_pass(call, flops=5 * call.tensor("self").elements + 2 * targets(call))


CTC_STEP_FLOPS = 12
"""`log(exp(a - m) + exp(b - m) + exp(c - m)) + m + x`, m = max(a, b, c): 2 + 3 + 3 + 2 + 1 + 1."""


@rule("_ctc_loss _cudnn_ctc_loss miopen_ctc_loss ctc_loss", kind=Kind.LOSS)
def ctc_loss(call: Call) -> Cost:
    """One step of the recursion for every state of every frame (Graves et al. 2006).

    The second result holds them; a kernel that keeps it to itself is assumed to have as many states
    as classes.
    """
    states = call.outputs[1] if call.name == "aten._ctc_loss" else call.tensor("log_probs")
    return one_pass(call, flops=CTC_STEP_FLOPS * states.elements)


@rule("_ctc_loss_backward", kind=Kind.LOSS)
def ctc_loss_backward(call: Call) -> Cost:
    """The recursion backwards, and 3 for each log-probability: subtract, exp, scale."""
    states = call.tensor("log_alpha").elements
    return one_pass(call, flops=CTC_STEP_FLOPS * states + 3 * result(call).elements)
