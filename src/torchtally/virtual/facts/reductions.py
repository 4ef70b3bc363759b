"""Many elements made one.

n: elements of a part that is reduced to one.
"""

import math
from dataclasses import replace

import torch

from torchtally.virtual.facts.arithmetic import maximum, minimum, sizes_of, span_of_product
from torchtally.virtual.facts.facts import (
    MAYBE_INFINITE,
    NON_NEGATIVE,
    NON_POSITIVE,
    UNIT,
    Facts,
    Number,
    Ramp,
    constant,
)
from torchtally.virtual.facts.products import added
from torchtally.virtual.facts.rules import Derived, argument, bounds, name_of, rule
from torchtally.virtual.facts.tensors import facts_of
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
    if is_any and facts.share * n < 1 < call.args[0].numel() // n:
        return Facts(0, 1, share=facts.share * n)  # the label is among the five likeliest
    if is_any:
        return assume(facts.share * n >= 1)
    return assume(False) if n > 1 else None


@rule("sum", needs_facts=False)
def total(call: Invocation) -> Derived:
    """Facts of a total: of ones in even parts each part has its share of them."""
    facts, n = facts_of(call.args[0]), count_reduced(call)
    if facts is None and call.args[0].dtype is torch.bool:
        facts = UNIT
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


@rule("trace")
def trace(call: Invocation) -> Derived:
    facts, n = facts_of(call.args[0]), min(call.args[0].shape)
    return None if facts is None else Facts(facts.lower * n, facts.upper * n, facts.is_finite)


def is_constant(facts: Facts) -> bool:
    """One finite number."""
    return facts.is_constant and facts.is_finite


@rule("prod")
def product(call: Invocation) -> Derived:
    facts, n = bounds(call.args[0]), count_reduced(call)
    if not is_constant(facts):
        return NON_NEGATIVE if facts.lower >= 0 and facts.is_finite else None
    try:
        return constant(facts.lower**n)
    except OverflowError:
        return constant(math.inf) if facts.lower > 0 or n % 2 == 0 else constant(-math.inf)


@rule("linalg_vector_norm", needs_facts=False)
def norm(call: Invocation) -> Derived:
    """n elements of one size have n ** (1 / order) times that."""
    facts, n, order = bounds(call.args[0]), count_reduced(call), argument(call, "ord", 2)
    if not facts.is_finite or order <= 0:
        return NON_NEGATIVE if facts.is_finite else MAYBE_INFINITE
    sizes = sizes_of(facts)
    if not n:
        return constant(0)
    factor = n ** (1 / order)
    return Facts(sizes.lower * factor, sizes.upper * factor)


@rule("var", "std", needs_facts=False)
def spread(call: Invocation) -> Derived:
    """Facts of a spread; of one element there is none: 0 / 0."""
    facts, n = bounds(call.args[0]), count_reduced(call)
    if n <= argument(call, "correction", 1):
        return MAYBE_INFINITE
    return constant(0) if is_constant(facts) else NON_NEGATIVE


@rule("count_nonzero", needs_facts=False)
def count_nonzero(call: Invocation) -> Derived:
    facts, n = bounds(call.args[0]), count_reduced(call)
    if facts.lower > 0 or facts.upper < 0:
        return constant(n)
    return Facts(0, 0 if facts.is_constant else n)


def size_of_dim(call: Invocation) -> int:
    tensor = call.args[0]
    return tensor.shape[call.argument("dim")] if tensor.dim() else 1


@rule("_softmax", "_safe_softmax", needs_facts=False)
def softmax(call: Invocation) -> Derived:
    return constant(1 / size_of_dim(call)) if is_constant(bounds(call.args[0])) else UNIT


@rule("_log_softmax", needs_facts=False)
def log_softmax(call: Invocation) -> Derived:
    is_even = is_constant(bounds(call.args[0]))
    return constant(-math.log(size_of_dim(call))) if is_even else NON_POSITIVE


def scaled_and_shifted(call: Invocation, normalised: float) -> Facts:
    """Equal elements, once they are normalised, with weight and bias."""
    weight, bias = argument(call, "weight"), argument(call, "bias")
    result = constant(normalised)
    if weight is not None:
        result = span_of_product(result, bounds(weight))
    return result if bias is None else added(result, bounds(bias))


@rule("native_layer_norm", "native_group_norm")
def layer_norm(call: Invocation) -> Derived:
    """Equal elements are their mean, and have no variance."""
    inputs, epsilon = bounds(call.args[0]), call.argument("eps")
    if not is_constant(inputs) or not epsilon:
        return None
    return scaled_and_shifted(call, 0), inputs, constant(epsilon**-0.5)


@rule("_fused_rms_norm")
def rms_norm(call: Invocation) -> Derived:
    inputs, epsilon = bounds(call.args[0]), argument(call, "eps")
    if epsilon is None:
        epsilon = torch.finfo(call.args[0].dtype).eps
    if not is_constant(inputs) or not epsilon:
        return None
    scale = (inputs.lower**2 + epsilon) ** -0.5
    return scaled_and_shifted(call, inputs.lower * scale), constant(scale)


@rule("logsumexp")
def logsumexp(call: Invocation) -> Derived:
    facts, n = bounds(call.args[0]), count_reduced(call)
    if not facts.is_finite or not n:
        return None
    return Facts(facts.lower + math.log(n), facts.upper + math.log(n))


@rule("mse_loss", needs_facts=False)
def squared_distance(call: Invocation) -> Derived:
    one, other = bounds(call.args[0]), bounds(call.args[1])
    if not (is_constant(one) and is_constant(other)):
        return NON_NEGATIVE
    n = call.args[0].numel() if call.argument("reduction") == SUM else 1
    return constant(n * (one.lower - other.lower) ** 2)


SUM = 2
"""As `at::Reduction` numbers it (ATen/core/Reduction.h)."""


@rule("mean", "median", "mode", "cummax", "cummin", "_adaptive_avg_pool2d")
def average(call: Invocation) -> Derived:
    facts = facts_of(call.args[0])
    if facts is None:
        return None
    within = Facts(facts.lower, facts.upper, facts.is_finite)
    name = name_of(call)
    if name == "mean" and facts.share is not None:
        return replace(constant(facts.share), is_assumed=True)
    several = name.startswith("cum") or (
        name in ("median", "mode") and "dim" in call.operator.arguments
    )
    return (within, None) if several else within


@rule("avg_pool2d")
def pool(call: Invocation) -> Derived:
    facts = bounds(call.args[0])
    within = Facts(facts.lower, facts.upper, facts.is_finite)
    return within | constant(0) if any(argument(call, "padding", ())) else within


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
    tensor, facts = call.args[0], facts_of(call.args[0])
    if facts is None or not tensor.numel():
        return None
    n = size_of_dim(call)
    if is_constant(facts):
        shape, dim = tensor.shape or (1,), call.argument("dim")
        is_in_order = not call.operator.is_inplace or tensor.is_contiguous()
        ramp = Ramp(facts.lower, facts.lower, math.prod(shape[dim:][1:]), n)
        last = facts.lower * n
        return Facts(
            min(facts.lower, last), max(facts.lower, last), ramp=ramp if is_in_order else None
        )
    if facts.lower < 0:
        return None
    return Facts(facts.lower, facts.upper * n if facts.total is None else facts.total)
