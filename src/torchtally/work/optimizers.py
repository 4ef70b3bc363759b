"""Optimizer steps fused into one kernel, and loss scaling.

n: elements of the parameters.

FLOPs per element follow torch's kernels (ATen/native/cuda/fused_adam_utils.cuh, FusedSgdKernel.cu,
FusedAdagradKernel.cu), every multiply, add, divide and root one; what depends on the step alone is
computed once and not counted. Learning rate and weight decay are floats, which a record does not
keep: decay is counted where the optimizer has it by default (AdamW).

Gradients are among the arguments the schema lets the kernel write to; it does so only to store
unscaled ones, when a gradient scale is given.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, is_set, one_pass, rule

ADAM_FLOPS = 3 + 4 + 3 + 3
"""`m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; d = sqrt(v)/c + eps; p -= s*m/d`"""
DECAY_FLOPS = 2
"""AdamW: `p -= lr*wd * p`"""
ADAGRAD_FLOPS = 2 + 2 + 3
"""`G += g*g; d = sqrt(G) + eps; p -= lr*g/d`"""
SGD_FLOPS = 2
"""`p -= lr*g`"""
MOMENTUM_FLOPS = 3
"""`b = momentum*b + (1-dampening)*g` from the second step on; at the first, `b = g`."""
NESTEROV_FLOPS = 2
"""`g += momentum*b`"""


def step(call: Call, per_element: int) -> Cost:
    is_scaled = bool(call.tensors("grad_scale"))
    per_element += is_scaled + is_set(call, "maximize")
    n = sum(spec.elements for spec in call.tensors("self"))
    unwritten = () if is_scaled else ("grads",)
    return one_pass(call, flops=per_element * n, unwritten=unwritten)


@rule("_fused_adam", kind=Kind.OPTIMIZER)
def adam(call: Call) -> Cost:
    """13n; 14n with amsgrad, which compares for a maximum."""
    return step(call, ADAM_FLOPS + is_set(call, "amsgrad"))


@rule("_fused_adamw", kind=Kind.OPTIMIZER)
def adamw(call: Call) -> Cost:
    """15n; 16n with amsgrad."""
    return step(call, ADAM_FLOPS + DECAY_FLOPS + is_set(call, "amsgrad"))


@rule("_fused_adagrad", kind=Kind.OPTIMIZER)
def adagrad(call: Call) -> Cost:
    return step(call, ADAGRAD_FLOPS)


@rule("_fused_sgd", kind=Kind.OPTIMIZER)
def sgd(call: Call) -> Cost:
    """2n; 5n with momentum, 7n with Nesterov's."""
    has_momentum = bool(call.tensors("momentum_buffer_list"))
    is_first = is_set(call, "is_first_step")
    momentum = MOMENTUM_FLOPS * (has_momentum and not is_first)
    nesterov = NESTEROV_FLOPS * (has_momentum and is_set(call, "nesterov"))
    cost = step(call, SGD_FLOPS + momentum + nesterov)
    if not is_first:
        return cost
    unread = sum(spec.bytes for spec in call.tensors("momentum_buffer_list"))
    return cost + Cost(bytes_read=-unread)


@rule("_amp_foreach_non_finite_check_and_unscale", kind=Kind.OPTIMIZER)
def unscale(call: Call) -> Cost:
    """Look for an infinity, multiply: 2n."""
    n = sum(spec.elements for spec in call.tensors("self"))
    return one_pass(call, flops=2 * n)


@rule("_amp_update_scale", kind=Kind.OPTIMIZER)
def update_scale(call: Call) -> Cost:
    """Three numbers: a compare and a multiply."""
    return one_pass(call, flops=2)
