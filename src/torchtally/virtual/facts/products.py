"""Bounds of products of matrices, convolutions, attention: constants have closed forms at any size.

k: elements of one operand that a product sums over.
"""

from math import prod

from torchtally.virtual.facts.arithmetic import span_of_product
from torchtally.virtual.facts.facts import MAYBE_INFINITE, Facts, constant
from torchtally.virtual.facts.rules import Derived, argument, bounds, rule
from torchtally.virtual.invocation import Invocation


def scaled(facts: Facts, factor: float) -> Facts:
    return span_of_product(facts, constant(factor))


def added(one: Facts, other: Facts) -> Facts:
    if not (one.is_finite and other.is_finite):
        return MAYBE_INFINITE
    return Facts(one.lower + other.lower, one.upper + other.upper)


@rule("mm", "bmm", "mv", "dot", "vdot")
def matrix_product(call: Invocation) -> Derived:
    one, other = call.args[:2]
    return scaled(span_of_product(bounds(one), bounds(other)), one.shape[-1])


@rule("addmm", "baddbmm", "addmv")
def product_added(call: Invocation) -> Derived:
    summand, one, other = call.args[:3]
    product = scaled(span_of_product(bounds(one), bounds(other)), one.shape[-1])
    alpha, beta = argument(call, "alpha", 1), argument(call, "beta", 1)
    return added(scaled(bounds(summand), beta), scaled(product, alpha))


@rule("convolution", "cudnn_convolution")
def convolution(call: Invocation) -> Derived:
    """Facts of a convolution: at an edge that is padded fewer products are summed."""
    inputs, weight = call.args[:2]
    if argument(call, "transposed"):
        return None
    product = scaled(span_of_product(bounds(inputs), bounds(weight)), prod(weight.shape[1:]))
    if any(argument(call, "padding", ())):
        product |= constant(0)
    bias = argument(call, "bias")
    return product if bias is None else added(product, bounds(bias))


@rule(
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
def attention(call: Invocation) -> Derived:
    """Means of values, unless a mask leaves a query none, or dropout scales them."""
    value = bounds(call.argument("value"))
    bias = argument(call, "attn_bias", argument(call, "attn_mask"))
    is_open = bias is None or bounds(bias).is_finite
    if argument(call, "dropout_p", 0) or not is_open:
        return None
    return [Facts(value.lower, value.upper, value.is_finite)]
