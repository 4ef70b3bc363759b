"""What is known of a tensor: kept with its storage, or learned from its values."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.facts.facts import MAYBE_INFINITE, Facts, constant, in_dtype, range_of
from torchtally.virtual.storage import VirtualStorage, virtual_of

FEW_ELEMENTS = 4096
"""Kept values up to so many are looked at for their bounds."""

MANY_TRUTHS = 1 << 20
"""Kept truths up to so many are counted: some microseconds."""

FALLING = "assumed: losses fall"
"""What is said where a script reads a loss, or what follows from one."""

EVEN = "assumed: evenly drawn"
"""What is said where a script reads what random integers or a random mask decide."""


def facts_of(tensor: Tensor) -> Facts | None:
    """What is known of a tensor's elements; None for nothing."""
    virtual = virtual_of(tensor)
    if virtual is None:
        return None if private.is_meta(tensor) else facts_of_values(tensor)
    if virtual.facts is not None:
        if tensor.dtype is not virtual.facts_dtype or tensor.is_neg():
            return None
        if is_whole(tensor, virtual):
            return virtual.facts
        return on_ramp(tensor, virtual.facts) or virtual.facts.of_part
    if virtual.value is None or virtual.assumption is FALLING:
        return None
    real = values.real_of(once_each(tensor))
    facts = None if real is None else facts_of_values(real)
    if facts is None or virtual.assumption is None:
        return facts
    return replace(facts, is_assumed=True)


def on_ramp(tensor: Tensor, facts: Facts) -> Facts | None:
    """The one number that a view has of elements that rise."""
    ramp = facts.ramp
    offset = int(tensor.storage_offset())
    if ramp is None or not ramp.is_level(offset, zip(tensor.shape, tensor.stride(), strict=True)):
        return None
    stored = in_dtype(constant(ramp.at(offset)), tensor.dtype)
    return None if stored is None else replace(stored, is_assumed=facts.is_assumed)


def once_each(tensor: Tensor) -> Tensor:
    """A tensor without the repetitions of its elements that `expand` makes."""
    if 0 not in tensor.stride():
        return tensor
    sizes = [
        n if step else min(n, 1) for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.detach().as_strided(sizes, tensor.stride())


def facts_or_range(tensor: Tensor) -> Facts:
    return facts_of(tensor) or range_of(tensor.dtype)


def is_whole(tensor: Tensor, virtual: VirtualStorage) -> bool:
    """A tensor has all elements of its storage."""
    return tensor.numel() * tensor.element_size() == virtual.requested_bytes


def facts_of_values(real: Tensor, limit: int = FEW_ELEMENTS) -> Facts | None:
    """Bounds of a real tensor's elements, of so many at most."""
    is_mask = real.dtype is torch.bool and real.layout is torch.strided
    if is_mask and 0 < real.numel() <= MANY_TRUTHS:
        ones = int(torch.count_nonzero(real))
        share = ones / real.numel() if 0 < ones < real.numel() else None
        return Facts(int(ones == real.numel()), int(ones > 0), share=share)
    if not 0 < real.numel() <= limit or real.is_complex() or real.layout is not torch.strided:
        return None
    if real.element_size() == 1 and values.is_approximate(real.dtype):
        return None  # 8-bit floats have no such kernels
    lower, upper = (bound.item() for bound in real.detach().aminmax())
    if math.isnan(lower):
        return MAYBE_INFINITE
    is_finite = math.isfinite(lower) and math.isfinite(upper)
    share = None
    if (lower, upper) == (0, 1) and bool(((real == 0) | (real == 1)).all()):
        share = int(torch.count_nonzero(real)) / real.numel()
    return Facts(lower, upper, is_finite, share=share, is_tight=lower != upper)


def is_informed(virtual: VirtualStorage | None) -> bool:
    """Something may be known of a tensor's elements; None is a real tensor's storage."""
    return virtual is None or virtual.facts is not None or virtual.value is not None


def is_any_informed(virtuals: Iterable[VirtualStorage | None]) -> bool:
    """Something may be known of one of them. A loop, since every operator asks."""
    for virtual in virtuals:
        if virtual is None or virtual.value is not None or virtual.facts is not None:
            return True
    return False


def assumption_of(virtuals: Iterable[VirtualStorage | None]) -> str | None:
    """What the values of one of them, or the bounds that are known of it, rest on."""
    for virtual in virtuals:
        if virtual is None or virtual.assumption is None:
            continue
        if virtual.value is not None or (virtual.facts and virtual.facts.is_assumed):
            return virtual.assumption
    return None


UNMASKED = "assumed: unknown scores lie above -1e9"
"""What is said where a script asks whether unknown numbers exceed masked ones."""


def spread_of(sources: Iterable[VirtualStorage | None], default: str = EVEN) -> str:
    """What was assumed of how the elements of one of them are spread within their bounds."""
    assumptions = (virtual.assumption for virtual in sources if virtual is not None)
    return next(filter(None, assumptions), default)


def settle(facts: Facts, sources: Sequence[VirtualStorage | None]) -> tuple[Facts, str | None]:
    """Facts derived from the elements of `sources`, and the assumption that they rest on."""
    assumption = assumption_of(sources)
    if assumption is not None:
        # Of a loss its value is assumed, and its bounds are certain.
        return facts if assumption is FALLING else replace(facts, is_assumed=True), assumption
    is_spread = facts.is_spread and not facts.is_constant
    if not facts.is_assumed and not is_spread:
        return facts, None
    is_guess = facts.is_constant and not all(map(is_informed, sources))
    return facts, spread_of(sources, UNMASKED if is_guess else EVEN)


def keep_facts(tensor: Tensor, facts: Facts, assumption: str | None) -> None:
    """Keeps facts of a tensor that has its whole storage. Where they fix its values those are
    kept.
    """
    virtual = virtual_of(tensor)
    stored = in_dtype(facts, tensor.dtype)
    if virtual is None or stored is None:
        return
    if virtual.value is None and is_small(tensor, virtual) and is_fixed(stored):
        values.give_value(tensor, values_of(stored, tensor))
    virtual.facts, virtual.facts_dtype = stored, tensor.dtype
    virtual.assumption = assumption


def is_fixed(facts: Facts) -> bool:
    """Facts that say what every element is."""
    return facts.is_constant or facts.total is not None


def is_small(tensor: Tensor, virtual: VirtualStorage) -> bool:
    return values.keeps_value(tensor.dtype, virtual.requested_bytes)


def values_of(facts: Facts, tensor: Tensor) -> Tensor:
    """The values that facts fix, in a tensor's shape: a constant, or a total split evenly."""
    if facts.is_constant or facts.total is None:
        return torch.full((), facts.lower, dtype=tensor.dtype).expand(tensor.shape)
    each, rest = divmod(facts.total, tensor.numel())
    counts = torch.full((tensor.numel(),), each)
    # From the middle, so that no count is special for being the first.
    first = (tensor.numel() - rest) // 2
    counts[first : first + rest] += 1
    return counts.view(tensor.shape)


def readable(tensor: Tensor) -> Tensor | None:
    """A tensor's values for reading: those kept, or the one that all elements have; else None."""
    real = values.real_of(tensor)
    if real is not None:
        return real
    facts = facts_of(tensor)
    return values_of(facts, tensor) if facts is not None and facts.is_constant else None


def substitute(tensor: Tensor) -> float | int | bool | complex:
    """What an unknown element reads as: the dtype's placeholder, or a number within its bounds.

    An integer is from the middle: a length or an index of 0 would be a special case. So is a float
    between bounds, as a fraction or a count: an accuracy of 1, or an error of 0, would end what
    waits for it.
    """
    given = values.placeholder(tensor.dtype)
    facts = facts_of(tensor)
    if facts is None or isinstance(given, complex):
        return given
    if isinstance(given, bool):
        return facts.is_likely
    if isinstance(given, float):
        if facts.lower >= 0 and math.isfinite(facts.upper):
            return (facts.lower + facts.upper) / 2
        return float(min(max(given, facts.lower), facts.upper))
    return (int(facts.lower) + int(facts.upper)) // 2
