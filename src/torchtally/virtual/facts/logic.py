"""Comparisons, and what follows from their answers."""

import math
from dataclasses import replace

import torch

from torchtally.virtual import values
from torchtally.virtual.facts.facts import Facts, constant
from torchtally.virtual.facts.rules import Derived, argument, bounds, name_of, rule
from torchtally.virtual.facts.spans import both, compare_spans
from torchtally.virtual.invocation import Invocation


def is_below(one: Facts, other: Facts) -> bool:
    """Every element of one is less than every one of the other. Finite is less than infinite."""
    is_finite = one.is_finite or other.is_finite
    at_infinity = one.upper == other.lower and math.isinf(one.upper) and is_finite
    return one.upper < other.lower or at_infinity


def share_equal(one: Facts, other: Facts) -> float | None:
    """How many elements are equal, where one side is an even choice or has a share of ones."""
    for facts, number in ((one, other), (other, one)):
        if facts.is_even and facts.lower <= number.lower and number.upper <= facts.upper:
            return 1 / facts.size
        if facts.share is not None and number.is_constant:
            return {0: 1 - facts.share, 1: facts.share}.get(int(number.lower), 0.0)
    return None


def truth(answer: bool | None, share: float | None = None) -> Facts | None:
    if answer is not None:
        return constant(int(answer))
    return None if share is None else Facts(0, 1, share=share)


def compare(call: Invocation) -> Derived:
    """`x == x` and `x != inf` are how torch itself spells isnan and isfinite."""
    one, other = bounds(call.args[0]), bounds(call.args[1])
    name = name_of(call)
    if not all(facts.is_finite or facts.is_constant for facts in (one, other)):
        return None  # NaN compares as nothing else does
    if call.args[0] is call.args[1]:
        return truth(name in ("eq", "le", "ge"))
    if len(call.inputs) == 2 and (spans := compare_spans(name, *call.inputs)) is not None:
        return Facts(0, 1, spans=spans)
    if name in ("lt", "le", "gt", "ge") and (answer := above_mask(name, one, other)) is not None:
        return answer
    if call.args[0].dim() == 0 and is_above_zero(name, one, other):
        return Facts(0, 1, is_likely=True)
    if name in ("gt", "ge"):
        one, other, name = other, one, {"gt": "lt", "ge": "le"}[name]
    if name == "le":
        negated = is_less(other, one)
        return truth(None if negated is None else not negated, share_below(one, other))
    if name == "lt":
        return truth(is_less(one, other), share_below(one, other))
    is_equal: bool | None = None
    if is_below(one, other) or is_below(other, one):
        is_equal = False
    elif one.is_constant and other.is_constant:
        is_equal = True
    share = share_equal(one, other)
    if name == "eq":
        return truth(is_equal, share)
    return truth(None if is_equal is None else not is_equal, None if share is None else 1 - share)


def is_less(one: Facts, other: Facts) -> bool | None:
    """Every element of one is less than the other's, or none is; None where it depends."""
    if is_below(one, other):
        return True
    return False if one.lower >= other.upper else None


MASKED = -1e9
"""What stands for minus infinity among scores (transformers' beam search, generation/utils.py)."""


def above_mask(name: str, one: Facts, other: Facts) -> Facts | None:
    """Unknown floats, which are assumed to be finite, are assumed to lie above what is masked."""
    is_first = is_unknown(one) and other.upper <= MASKED
    if not (is_first or (is_unknown(other) and one.upper <= MASKED)):
        return None
    return replace(constant(int(is_first == (name in ("gt", "ge")))), is_assumed=True)


NEGLIGIBLE = torch.finfo(torch.float32).eps
"""A threshold of at most this guards against zero: float32 tells no two numbers apart by less."""


def is_above_zero(name: str, one: Facts, other: Facts) -> bool:
    """An unknown number is asked whether it is more than nothing, and may be: as the number that
    is read for it, which is 1 where that is within its bounds, it is.
    """
    if name in ("lt", "le"):
        one, other, name = other, one, {"lt": "gt", "le": "ge"}[name]
    return (
        name in ("gt", "ge")
        and other.is_constant
        and 0 < other.lower <= NEGLIGIBLE
        and one.is_finite
        and one.lower <= other.lower < min(one.upper, values.PLACEHOLDER_FLOAT)
    )


def is_unknown(facts: Facts) -> bool:
    """Nothing is known but that elements are finite."""
    return facts.is_finite and facts.lower == -math.inf and facts.upper == math.inf


def share_below(one: Facts, other: Facts) -> float | None:
    """Zeros and ones compared with a number between: `mask > 0`."""
    if one.is_constant and other.share is not None:
        return other.share
    if other.is_constant and one.share is not None:
        return 1 - one.share
    return None


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(_name, needs_facts=False)(compare)


@rule("isin", needs_facts=False)
def isin(call: Invocation) -> Derived:
    one, other = bounds(call.args[0]), bounds(call.args[1])
    if is_below(one, other) or is_below(other, one):
        return constant(int(bool(argument(call, "invert"))))
    return None


@rule("logical_and", "bitwise_and")
def conjunction(call: Invocation) -> Derived:
    """False & x is False, and of integers 0 & x is 0."""
    one, other = bounds(call.args[0]), bounds(call.args[1])
    if one.is_all(0) or other.is_all(0):
        return constant(0)
    is_bool = all(tensor.dtype is torch.bool for tensor in call.inputs)
    if is_bool and len(call.inputs) == 2 and (spans := both(*call.inputs)) is not None:
        return Facts(0, 1, spans=spans)
    if min(one.lower, other.lower) < 0 or (name_of(call) == "logical_and" and not is_bool):
        return None
    shares = [facts.share for facts in (one, other) if facts.share is not None]
    return Facts(0, min(one.upper, other.upper), share=min(shares) if shares else None)


@rule("logical_or", "bitwise_or")
def disjunction(call: Invocation) -> Derived:
    """True | x is True."""
    one, other = bounds(call.args[0]), bounds(call.args[1])
    is_bool = all(facts.lower >= 0 and facts.upper <= 1 for facts in (one, other))
    return constant(1) if is_bool and (one.is_all(1) or other.is_all(1)) else None


@rule("logical_not", "bitwise_not")
def negation(call: Invocation) -> Derived:
    facts = bounds(call.args[0])
    is_logical = name_of(call) == "logical_not" or call.inputs[0].dtype is torch.bool
    if not is_logical:
        return Facts(-facts.upper - 1, -facts.lower - 1)
    if facts.lower > 0 or facts.upper < 0:
        return constant(0)
    if facts.is_constant:
        return constant(1)
    return None if facts.share is None else Facts(0, 1, share=1 - facts.share)
