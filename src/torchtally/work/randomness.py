"""Random numbers and dropout.

n: elements drawn.

A draw is one FLOP, whatever the generator does for it (Philox takes integer arithmetic in
registers only).
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, aten, one_pass, result, rule

SHAPE_ONLY = ("self", "key")
"""Filled or given for its shape: not read."""


@rule(
    *aten(
        "normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ uniform random"
        " exponential geometric cauchy log_normal rand randn randint rand_like randn_like"
        " randint_like randperm normal_functional _philox_normal _philox_uniform _philox_normal_"
        " _philox_uniform_"
    ),
    kind=Kind.RANDOM,
)
def drawn(call: Call) -> Cost:
    """So many draws, written."""
    return one_pass(call, flops=result(call).elements, unread=SHAPE_ONLY)


@rule(
    *aten("normal bernoulli poisson binomial _standard_gamma _sample_dirichlet"),
    kind=Kind.RANDOM,
)
def drawn_around(call: Call) -> Cost:
    """A draw for each element, with parameters of its own, which are read."""
    return one_pass(call, flops=result(call).elements)


@rule("aten.bernoulli_", kind=Kind.RANDOM)
def bernoulli_in_place(call: Call) -> Cost:
    return one_pass(call, flops=result(call).elements, unread=("self",))


@rule(*aten("_standard_gamma_grad _dirichlet_grad"), kind=Kind.RANDOM)
def gamma_gradient(call: Call) -> Cost:
    return one_pass(call, flops=result(call).elements)


@rule("aten.multinomial", kind=Kind.RANDOM)
def multinomial(call: Call) -> Cost:
    """The running sum of the weights, and a draw and its search for each sample."""
    weights, samples = call.tensor("self"), result(call).elements
    search = max(1, (weights.shape[-1] - 1).bit_length())
    return one_pass(call, flops=weights.elements + samples * (1 + search))


@rule(
    *aten(
        "native_dropout _fused_dropout dropout alpha_dropout feature_dropout feature_alpha_dropout"
    ),
    kind=Kind.RANDOM,
)
def dropout(call: Call) -> Cost:
    """Draw, compare, multiply by the mask, scale: 4n. The mask is written beside the result."""
    return one_pass(call, flops=4 * result(call).elements)
