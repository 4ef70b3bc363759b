"""Random numbers and dropout.

n: elements drawn.

A draw is one FLOP, whatever the generator does for it (Philox takes integer arithmetic in
registers only).
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, one_pass, result, rule, rules

SHAPE_ONLY = ("self", "key")
"""Filled or given for its shape: not read."""

rules(
    Kind.RANDOM,
    # So many draws, written.
    PerElement(
        "normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ uniform random"
        " exponential geometric cauchy log_normal rand randn randint rand_like randn_like"
        " randint_like randperm normal_functional _philox_normal _philox_uniform _philox_normal_"
        " _philox_uniform_",
        flops=1,
        unread=SHAPE_ONLY,
    ),
    PerElement("bernoulli_", 1, unread=("self",)),
    # A draw for each element, with parameters of its own, which are read.
    PerElement("normal bernoulli poisson binomial _standard_gamma _sample_dirichlet", 1),
    PerElement("_standard_gamma_grad _dirichlet_grad", 1),
    # Draw, compare, multiply by the mask, scale. The mask is written beside the result.
    PerElement(
        "native_dropout _fused_dropout dropout alpha_dropout feature_dropout feature_alpha_dropout",
        flops=4,
    ),
)


@rule("multinomial", kind=Kind.RANDOM)
def multinomial(call: Call) -> Cost:
    """The running sum of the weights, and a draw and its search for each sample."""
    weights, samples = call.tensor("self"), result(call).elements
    search = max(1, (weights.shape[-1] - 1).bit_length())
    return one_pass(call, flops=weights.elements + samples * (1 + search))
