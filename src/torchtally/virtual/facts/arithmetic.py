"""Bounds of sums, products and their like."""

import math
from collections.abc import Callable
from dataclasses import replace

from torchtally.virtual.facts.facts import MAYBE_INFINITE, NON_NEGATIVE, Facts, Number, constant
from torchtally.virtual.facts.rules import Derived, argument, bounds, name_of, rule
from torchtally.virtual.facts.tensors import is_any_informed
from torchtally.virtual.invocation import Invocation


def product(one: Number, other: Number) -> Number:
    return 0 if not one or not other else one * other


def span_of_product(one: Facts, other: Facts) -> Facts:
    """Span of elements that are multiplied."""
    if not (one.is_finite and other.is_finite):
        return MAYBE_INFINITE
    corners = [product(a, b) for a in (one.lower, one.upper) for b in (other.lower, other.upper)]
    return Facts(min(corners), max(corners))


@rule("mul", needs_facts=False)
def mul(call: Invocation) -> Derived:
    """0 * x is 0 for a finite x."""
    is_zero = isinstance(call.args[1], (int, float)) and not call.args[1]
    if not is_zero and not is_any_informed(call.virtuals):
        return None
    one, other = bounds(call.args[0]), bounds(call.args[1])
    for zero, factor in ((one, other), (other, one)):
        if zero.is_constant and not zero.lower and factor.is_finite:
            return constant(0)
    span = span_of_product(one, other)
    if not span.is_finite:
        return MAYBE_INFINITE
    shares = [facts.share for facts in (one, other) if facts.share is not None]
    is_bits = min(one.lower, other.lower) >= 0 and max(one.upper, other.upper) <= 1
    share = min(shares) if shares and is_bits else None
    return replace(span, share=share)


ROUNDING: dict[str | None, Callable[[float], int]] = {"floor": math.floor, "trunc": math.trunc}


@rule("div")
def div(call: Invocation) -> Derived:
    one, other = bounds(call.args[0]), bounds(call.args[1])
    if not other.is_constant or other.lower <= 0 or math.isinf(other.lower):
        return None
    mode = "floor" if name_of(call) == "floor_divide" else argument(call, "rounding_mode")
    lower, upper = one.lower / other.lower, one.upper / other.lower
    if mode in ROUNDING and one.is_finite:
        lower, upper = (
            bound if math.isinf(bound) else ROUNDING[mode](bound) for bound in (lower, upper)
        )
    return Facts(lower, upper, one.is_finite)


@rule("floor_divide")
def floor_divide(call: Invocation) -> Derived:
    return div(call)


@rule("remainder")
def remainder(call: Invocation) -> Derived:
    divisor = bounds(call.args[1])
    if not divisor.is_constant or divisor.lower <= 0:
        return None
    is_whole = isinstance(divisor.lower, int)
    return Facts(0, divisor.lower - 1 if is_whole else divisor.lower)


@rule("add", "sub", "rsub")
def add(call: Invocation) -> Derived:
    one, other = bounds(call.args[0]), bounds(call.args[1])
    alpha = argument(call, "alpha", 1)
    if alpha != 1:
        return None
    if name_of(call) == "rsub":
        one, other = other, one
    if name_of(call) != "add":
        other = negative(other)
    is_finite = one.is_finite and other.is_finite
    if not is_finite:
        return MAYBE_INFINITE
    return Facts(one.lower + other.lower, one.upper + other.upper)


def negative(facts: Facts) -> Facts:
    return Facts(-facts.upper, -facts.lower, facts.is_finite)


@rule("neg")
def neg(call: Invocation) -> Derived:
    return negative(bounds(call.args[0]))


@rule("abs", needs_facts=False)
def absolute(call: Invocation) -> Derived:
    return sizes_of(bounds(call.args[0]))


def sizes_of(facts: Facts) -> Facts:
    """Facts of elements without their signs."""
    largest = max(abs(facts.lower), abs(facts.upper))
    smallest = 0 if facts.lower <= 0 <= facts.upper else min(abs(facts.lower), abs(facts.upper))
    return Facts(smallest, largest, facts.is_finite)


@rule("sqrt", "log1p")
def monotone_from_zero(call: Invocation) -> Derived:
    return NON_NEGATIVE if bounds(call.args[0]).lower >= 0 else None


@rule("pow", needs_facts=False)
def power(call: Invocation) -> Derived:
    exponent = call.args[1]
    is_even = isinstance(exponent, (int, float)) and exponent > 0 and exponent % 2 == 0
    return NON_NEGATIVE if is_even else None


@rule("round", "floor", "ceil", "trunc")
def round_facts(call: Invocation) -> Derived:
    facts = bounds(call.args[0])
    if argument(call, "decimals"):
        return None
    lower, upper = (
        bound if math.isinf(bound) else to_integer(bound)
        for to_integer, bound in ((math.floor, facts.lower), (math.ceil, facts.upper))
    )
    return Facts(lower, upper, facts.is_finite)


def clamp_bounds(facts: Facts, least: Facts, most: Facts) -> Facts:
    return Facts(
        min(max(facts.lower, least.lower), most.lower),
        min(max(facts.upper, least.upper), most.upper),
        facts.is_finite or (math.isfinite(least.lower) and math.isfinite(most.upper)),
    )


@rule("clamp", needs_facts=False)
def clamp(call: Invocation) -> Derived:
    least, most = argument(call, "min", -math.inf), argument(call, "max", math.inf)
    return clamp_bounds(bounds(call.args[0]), bounds(least), bounds(most))


@rule("hardtanh", needs_facts=False)
def hardtanh(call: Invocation) -> Derived:
    least, most = argument(call, "min_val", -1), argument(call, "max_val", 1)
    return clamp_bounds(bounds(call.args[0]), constant(least), constant(most))


@rule("clamp_min", "maximum", needs_facts=False)
def maximum(call: Invocation) -> Derived:
    return clamp_bounds(bounds(call.args[0]), bounds(call.args[1]), constant(math.inf))


@rule("clamp_max", "minimum", needs_facts=False)
def minimum(call: Invocation) -> Derived:
    return clamp_bounds(bounds(call.args[0]), constant(-math.inf), bounds(call.args[1]))


@rule("relu", needs_facts=False)
def relu(call: Invocation) -> Derived:
    return clamp_bounds(bounds(call.args[0]), constant(0), constant(math.inf))
