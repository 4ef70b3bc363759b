"""Loss functions.

n: elements of the prediction.  C: classes.  T: rows, each with one target.

FLOPs per element follow the formula in each docstring; a mean or a sum adds one.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.indexing import touch
from torchtally.work.rule import Kind, aten, integer, one_pass, result, rule

NOT_REDUCED = 0
"""at::Reduction::None; 1 is the mean, the default, 2 the sum."""


def pointwise_loss(call: Call, flops: int) -> Cost:
    """So many FLOPs for each element, one more to add them up, one more with a weight."""
    is_reduced = integer(call, "reduction", 1) != NOT_REDUCED
    per_element = flops + is_reduced + len(call.tensors("weight"))
    return one_pass(call, flops=per_element * call.inputs[0].elements)


@rule(*aten("mse_loss l1_loss smooth_l1_loss huber_loss"), kind=Kind.LOSS)
def difference_loss(call: Call) -> Cost:
    """`f(x - t)`: subtract, and a named function: 2n; 3n when reduced."""
    return pointwise_loss(call, 2)


@rule(
    *aten("mse_loss_backward smooth_l1_loss_backward huber_loss_backward"),
    kind=Kind.LOSS,
)
def difference_loss_backward(call: Call) -> Cost:
    """`f'(x - t) * grad`: 3n."""
    return one_pass(call, flops=3 * result(call).elements)


@rule("aten.binary_cross_entropy", kind=Kind.LOSS)
def binary_cross_entropy(call: Call) -> Cost:
    """`-(t * log(x) + (1 - t) * log(1 - x))`: 8n."""
    return pointwise_loss(call, 8)


@rule("aten.binary_cross_entropy_backward", kind=Kind.LOSS)
def binary_cross_entropy_backward(call: Call) -> Cost:
    """`grad * (x - t) / ((1 - x) * x)`: 5n, and 1 with a weight."""
    return one_pass(call, flops=(5 + len(call.tensors("weight"))) * result(call).elements)


@rule("aten.binary_cross_entropy_with_logits", kind=Kind.LOSS)
def binary_cross_entropy_with_logits(call: Call) -> Cost:
    """`(1 - t) * x + max(-x, 0) + log(1 + exp(-abs(x)))`: 10n, and 3 with a weight of positives."""
    return pointwise_loss(call, 10 + 3 * len(call.tensors("pos_weight")))


@rule("aten.kl_div", kind=Kind.LOSS)
def kl_div(call: Call) -> Cost:
    """`t * (log(t) - x)`: 3n."""
    return pointwise_loss(call, 3)


@rule(*aten("soft_margin_loss poisson_nll_loss"), kind=Kind.LOSS)
def soft_margin_loss(call: Call) -> Cost:
    """`f(-t * x)` of a named function: 3n; `exp(x) - t * x`: 3n."""
    return pointwise_loss(call, 3)


@rule("aten.soft_margin_loss_backward", kind=Kind.LOSS)
def soft_margin_loss_backward(call: Call) -> Cost:
    """`-t * grad * sigmoid(-t * x)`: 4n."""
    return one_pass(call, flops=4 * result(call).elements)


def targets(call: Call) -> int:
    """T."""
    return call.tensor("target").elements


@rule(*aten("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d nll_loss_nd"), kind=Kind.LOSS)
def nll_loss(call: Call) -> Cost:
    """`-x[target]`, added up: 2T. Reads one of C log-probabilities for each target."""
    return touch(call, table="self", elements=targets(call), flops=2 * targets(call))


@rule(*aten("nll_loss_backward nll_loss2d_backward"), kind=Kind.LOSS)
def nll_loss_backward(call: Call) -> Cost:
    """Zeros, and one gradient for each target. The prediction's values are not read."""
    return one_pass(call, flops=targets(call), unread=("self",))


@rule("aten.cross_entropy_loss", kind=Kind.LOSS)
def cross_entropy(call: Call) -> Cost:
    """Log-softmax, 5n, and 2T; with class probabilities for targets, as many more as there are."""
    return one_pass(call, flops=5 * call.tensor("self").elements + 2 * targets(call))


@rule(
    *aten(
        "multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward"
        " hinge_embedding_loss margin_ranking_loss"
    ),
    kind=Kind.LOSS,
)
def margin_loss(call: Call) -> Cost:
    """`max(0, margin - x_t + x)`: 3n."""
    return pointwise_loss(call, 3)


@rule(*aten("multi_margin_loss_backward multilabel_margin_loss_backward"), kind=Kind.LOSS)
def margin_loss_backward(call: Call) -> Cost:
    return one_pass(call, flops=3 * result(call).elements)


@rule("aten.triplet_margin_loss", kind=Kind.LOSS)
def triplet_margin_loss(call: Call) -> Cost:
    """Two distances, 4n each: subtract, add eps, a power, add."""
    return one_pass(call, flops=8 * call.inputs[0].elements)


@rule("aten.cosine_embedding_loss", kind=Kind.LOSS)
def cosine_embedding_loss(call: Call) -> Cost:
    """Three sums of products: 6n."""
    return one_pass(call, flops=6 * call.inputs[0].elements)


CTC_STEP_FLOPS = 12
"""`log(exp(a - m) + exp(b - m) + exp(c - m)) + m + x`, m = max(a, b, c): 2 + 3 + 3 + 2 + 1 + 1."""


@rule(*aten("_ctc_loss _cudnn_ctc_loss miopen_ctc_loss ctc_loss"), kind=Kind.LOSS)
def ctc_loss(call: Call) -> Cost:
    """One step of the recursion for every state of every frame (Graves et al. 2006).

    The second result holds them; a kernel that keeps it to itself is taken to have as many states
    as classes.
    """
    states = call.outputs[1] if call.name == "aten._ctc_loss" else call.tensor("log_probs")
    return one_pass(call, flops=CTC_STEP_FLOPS * states.elements)


@rule("aten._ctc_loss_backward", kind=Kind.LOSS)
def ctc_loss_backward(call: Call) -> Cost:
    """The recursion backwards, and 3 for each log-probability: subtract, exp, scale."""
    states = call.tensor("log_alpha").elements
    return one_pass(call, flops=CTC_STEP_FLOPS * states + 3 * result(call).elements)
