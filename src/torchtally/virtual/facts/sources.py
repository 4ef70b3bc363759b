"""Constants, ranges and choices that a call's own arguments give."""

import math
from dataclasses import replace

from torchtally.virtual.facts.facts import NON_NEGATIVE, NON_POSITIVE, UNIT, Facts, Ramp, constant
from torchtally.virtual.facts.rules import Derived, argument, bounds, known_facts, name_of, rule
from torchtally.virtual.facts.tensors import facts_of
from torchtally.virtual.invocation import Invocation


@rule("zeros", "zeros_like", "new_zeros", "zero", needs_facts=False)
def zeros(call: Invocation) -> Facts:
    return constant(0)


@rule("ones", "ones_like", "new_ones", needs_facts=False)
def ones(call: Invocation) -> Facts:
    return constant(1)


@rule("full", "full_like", "new_full", "fill", "scalar_tensor", needs_facts=False)
def full(call: Invocation) -> Derived:
    for name in ("fill_value", "value", "s"):
        if name in call.operator.arguments:
            return known_facts(call.argument(name))
    return None


@rule("arange", needs_facts=False)
def arange(call: Invocation) -> Derived:
    start, end, step = (
        argument(call, name, default) for name, default in (("start", 0), ("end", 0), ("step", 1))
    )
    count = math.ceil((end - start) / step)
    last = start + (count - 1) * step
    is_permutation = (start, step) == (0, 1) and isinstance(end, int)
    bounds = min(start, last), max(start, last)
    ramp = Ramp(start, step, 1, count) if count > 0 else None
    return Facts(*bounds, is_permutation=is_permutation, is_tight=True, ramp=ramp)


@rule("linspace", needs_facts=False)
def linspace(call: Invocation) -> Derived:
    ends = known_facts(call.argument("start")), known_facts(call.argument("end"))
    if ends[0] is None or ends[1] is None:
        return None
    within, intervals = ends[0] | ends[1], call.argument("steps") - 1
    if intervals < 1 or not (ends[0].is_constant and ends[1].is_constant):
        return within
    step = (ends[1].lower - ends[0].lower) / intervals
    return replace(within, ramp=Ramp(ends[0].lower, step, 1, intervals + 1))


@rule("randperm", needs_facts=False)
def randperm(call: Invocation) -> Facts:
    return Facts(0, call.args[0] - 1, is_permutation=True, is_tight=True)


@rule("randint", "randint_like", needs_facts=False)
def randint(call: Invocation) -> Facts:
    return Facts(argument(call, "low", 0), call.argument("high") - 1, is_even=True)


@rule("random", needs_facts=False)
def random(call: Invocation) -> Derived:
    end = argument(call, "to")
    return None if end is None else Facts(argument(call, "from", 0), end - 1, is_even=True)


@rule("uniform", needs_facts=False)
def uniform(call: Invocation) -> Facts:
    return Facts(argument(call, "from", 0.0), argument(call, "to", 1.0))


@rule("bernoulli", needs_facts=False)
def bernoulli(call: Invocation) -> Facts:
    p = argument(call, "p")
    return Facts(0, 1, share=p) if isinstance(p, (int, float)) and 0 < p < 1 else UNIT


@rule("rand", "rand_like", "eye", "sigmoid", "special_expit", needs_facts=False)
def unit(call: Invocation) -> Facts:
    return UNIT


@rule("tanh", "sin", "cos", "erf", "sign", needs_facts=False)
def within_one(call: Invocation) -> Facts:
    return Facts(-1, 1)


@rule("exp", "softplus", "square", needs_facts=False)
def non_negative(call: Invocation) -> Facts:
    return NON_NEGATIVE


@rule("log_sigmoid_forward", needs_facts=False)
def non_positive(call: Invocation) -> Derived:
    return NON_POSITIVE, None


@rule("smooth_l1_loss", "huber_loss", needs_facts=False)
def distance(call: Invocation) -> Facts:
    return NON_NEGATIVE


@rule("nll_loss_forward", "nll_loss2d_forward")
def likelihood(call: Invocation) -> Derived:
    """The mean or sum of negative likelihoods, and the sum of their weights."""
    return (NON_NEGATIVE, None) if bounds(call.args[0]).upper <= 0 else None


@rule("isnan", "isinf", "isposinf", "isneginf", needs_facts=False)
def is_not_finite(call: Invocation) -> Derived:
    """Unknown floats are finite: checks for NaN and infinity pass."""
    return constant(0) if bounds(call.args[0]).is_finite else None


@rule("nonzero", needs_facts=False)
def nonzero(call: Invocation) -> Facts:
    return Facts(0, max((*call.args[0].shape, 1)) - 1)


@rule("searchsorted", "bucketize", needs_facts=False)
def searchsorted(call: Invocation) -> Facts:
    edges = call.args[0] if name_of(call) == "searchsorted" else call.args[1]
    return Facts(0, edges.shape[-1])


@rule("bincount", "histc", needs_facts=False)
def counts(call: Invocation) -> Derived:
    """Counts of all elements: of floats those within the bounds that histc is given."""
    if argument(call, "weights") is not None:
        return None
    number = call.args[0].numel()
    return Facts(0, number, total=number)


@rule("sort", "topk", needs_facts=False)
def order(call: Invocation) -> Derived:
    """Values of the input, and their indices: sorted as a whole, each index once."""
    tensor = call.args[0]
    count = tensor.shape[argument(call, "dim", -1)] if tensor.dim() else 1
    is_all = name_of(call) == "sort" and tensor.numel() == count
    inner = facts_of(tensor)
    indices = Facts(0, count - 1, is_permutation=is_all, is_tight=is_all)
    return (None if inner is None else inner.of_part), indices
