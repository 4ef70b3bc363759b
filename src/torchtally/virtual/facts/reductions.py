"""Many elements made one.

n: elements of a part that is reduced to one.
"""

import math
from dataclasses import replace

from torchtally.virtual.facts.arithmetic import maximum, minimum
from torchtally.virtual.facts.facts import (
    Facts,
    Number,
    constant,
)
from torchtally.virtual.facts.rules import Derived, argument, bounds, name_of, rule
from torchtally.virtual.facts.tensors import (
    facts_of,
)
from torchtally.virtual.invocation import Invocation


def assume(number: Number) -> Facts:
    """A constant that follows from how elements are assumed to be spread."""
    return replace(constant(int(number)), is_assumed=True)


def reduced_dims(call: Invocation) -> list[int]:
    dim = argument(call, "dim")
    tensor = call.args[0]
    if dim is None or dim == []:
        return list(range(tensor.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def count_reduced(call: Invocation) -> int:
    """n."""
    count = 1
    for dim in reduced_dims(call):
        count *= call.args[0].shape[dim] if call.args[0].dim() else 1
    return count


@rule("any", "all")
def any_or_all(call: Invocation) -> Derived:
    facts, n = bounds(call.args[0]), count_reduced(call)
    is_any = name_of(call) == "any"
    if not n:
        return constant(int(not is_any))
    if facts.lower > 0 or facts.upper < 0:
        return constant(1)
    if facts.is_constant:
        return constant(0)
    if facts.share is None or not 0 < facts.share < 1:
        return None
    if is_any:
        return assume(facts.share * n >= 1)
    return assume(False) if n > 1 else None


@rule("sum")
def total(call: Invocation) -> Derived:
    """Of ones in even parts: each part has its share of them."""
    facts, n = facts_of(call.args[0]), count_reduced(call)
    elements = call.args[0].numel()
    if facts is None or not elements:
        return None
    if facts.total is not None and n == elements:
        return constant(facts.total)
    if facts.is_permutation and n == elements:
        return constant(n * (n - 1) // 2)
    if facts.share is not None:
        ones = round(facts.share * elements)
        each = ones / (elements // n)
        return Facts(math.floor(each), math.ceil(each), total=ones, is_assumed=True)
    return Facts(facts.lower * n, facts.upper * n, facts.is_finite)


@rule("mean", "median", "mode", "cummax", "cummin", "_adaptive_avg_pool2d")
def average(call: Invocation) -> Derived:
    facts = facts_of(call.args[0])
    if facts is None:
        return None
    within = Facts(facts.lower, facts.upper, facts.is_finite)
    name = name_of(call)
    several = name.startswith("cum") or (
        name in ("median", "mode") and "dim" in call.operator.arguments
    )
    return (within, None) if several else within


@rule("max", "min", "amax", "amin", "aminmax")
def extreme(call: Invocation) -> Derived:
    """An even choice of many has all its integers, so its largest is the upper bound."""
    name = name_of(call)
    if "other" in call.operator.arguments:
        return maximum(call) if name == "max" else minimum(call)
    facts, n = facts_of(call.args[0]), count_reduced(call)
    if facts is None:
        return None
    is_whole = facts.is_tight and n == call.args[0].numel()
    has_all = is_whole or (facts.is_even and n >= facts.size)
    lowest = highest = facts.of_part
    if has_all:
        is_assumed = facts.is_assumed or not is_whole
        lowest = replace(constant(facts.lower), is_assumed=is_assumed)
        highest = replace(constant(facts.upper), is_assumed=is_assumed)
    if name == "aminmax":
        return lowest, highest
    result = highest if "max" in name else lowest
    return (result, None) if argument(call, "dim") is not None and name in DIM_GIVES_TWO else result


DIM_GIVES_TWO = ("max", "min")
"""With a dimension they return values and indices."""


@rule("cumsum")
def cumulative(call: Invocation) -> Derived:
    facts = facts_of(call.args[0])
    if facts is None or facts.lower < 0:
        return None
    n = call.args[0].shape[call.argument("dim")] if call.args[0].dim() else 1
    return Facts(facts.lower, facts.upper * n if facts.total is None else facts.total)
