"""What is known of a tensor's elements where their values are not kept.

Facts belong to a storage: what holds for all its elements holds for every view of it. They are
derived operator by operator (`rules.py`), and an operator that writes something unknown drops
them. Unknown floats are assumed to be finite, as in a run that goes well.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from torchtally.virtual import values

if TYPE_CHECKING:
    from torchtally.virtual.facts.spans import Spans

Number = int | float


@dataclass(frozen=True, slots=True)
class Ramp:
    """Elements that rise evenly along one dimension: of `arange`, or sums of a constant."""

    first: Number
    step: Number
    stride: int
    """From one element to the next along it, in elements of the storage."""
    size: int

    def at(self, position: int) -> Number:
        """The element at a position of the storage."""
        return self.first + position // self.stride % self.size * self.step

    def is_level(self, offset: int, extents: Iterable[tuple[int, int]]) -> bool:
        """A view of these sizes and strides does not run along the dimension."""
        within = offset % self.stride
        for size, stride in extents:
            if size > 1 and stride % (self.stride * self.size):
                within += (size - 1) * stride
        return within < self.stride


@dataclass(frozen=True, slots=True)
class Facts:
    """Bounds of all elements, NaN apart, and what else is known of them."""

    lower: Number = -math.inf
    upper: Number = math.inf
    is_finite: bool = True
    """No element is infinite or NaN."""
    share: float | None = None
    """Of zeros and ones: how many are ones in any part, as a fraction."""
    total: int | None = None
    """The sum of all elements: counts, split evenly where they are read."""
    is_permutation: bool = False
    """Each of 0 .. n-1 once; the bounds are tight, too."""
    is_even: bool = False
    """Integers, each from `lower` to `upper` as often as any other in any part."""
    is_tight: bool = False
    """Both bounds are the value of some element."""
    spans: "Spans | None" = None
    """Of a mask of zeros and ones: where the ones of each row are."""
    ramp: Ramp | None = None
    is_likely: bool = False
    """Of a truth that is not known: it reads as True."""
    is_assumed: bool = False
    """The bounds rest on an assumption; share and evenness always do."""

    @property
    def is_constant(self) -> bool:
        return self.lower == self.upper

    @property
    def size(self) -> int:
        """How many integers lie within the bounds."""
        return int(self.upper) - int(self.lower) + 1

    @property
    def of_part(self) -> "Facts":
        """What holds for any part of the elements, and for any repetition of them."""
        if self.total is None and not self.is_tight and self.spans is None and self.ramp is None:
            return self
        return replace(
            self, total=None, is_permutation=False, is_tight=False, spans=None, ramp=None
        )

    def is_all(self, number: Number) -> bool:
        """Every element is this number."""
        return self.lower == number == self.upper

    def __or__(self, other: "Facts") -> "Facts":
        """What holds for elements of either kind."""
        share = self.share if self.share == other.share else None
        is_even = self.is_even and other.is_even and self.size == other.size
        return Facts(
            min(self.lower, other.lower),
            max(self.upper, other.upper),
            self.is_finite and other.is_finite,
            share=share,
            is_even=is_even,
            is_assumed=self.is_assumed or other.is_assumed,
        )

    @property
    def is_spread(self) -> bool:
        """Assumed is how the elements are spread within bounds that are certain."""
        return self.is_even or self.share is not None or self.total is not None


ANY = Facts()
UNIT = Facts(0, 1)
NON_NEGATIVE = Facts(0)
NON_POSITIVE = Facts(upper=0)
MAYBE_INFINITE = Facts(is_finite=False)
"""Infinity was written to some elements."""


def constant(number: Number) -> Facts:
    """All elements are equal to a number."""
    if math.isnan(number):
        return MAYBE_INFINITE
    number += 0  # True is 1
    return Facts(number, number, is_finite=not math.isinf(number))


def range_of(dtype: torch.dtype) -> Facts:
    """What the dtype alone says."""
    if dtype is torch.bool:
        return UNIT
    if values.is_approximate(dtype):
        return ANY
    limits = torch.iinfo(dtype)
    return Facts(limits.min, limits.max)


def in_dtype(facts: Facts, dtype: torch.dtype) -> Facts | None:
    """Facts of elements once they are stored in a dtype; None where nothing is known of them."""
    if dtype.is_complex:
        return None
    if dtype.is_floating_point and facts.lower < facts.upper:
        largest = torch.finfo(dtype).max
        overflows = any(largest < abs(bound) < math.inf for bound in (facts.lower, facts.upper))
        return None if overflows or facts == ANY else facts
    if facts.is_constant:
        number = stored_number(facts.lower, math.copysign(1, facts.lower), dtype)
        facts = replace(constant(number), total=facts.total, is_assumed=facts.is_assumed)
    elif dtype is torch.bool:
        return as_truth(facts)
    elif not values.is_approximate(dtype):
        limits = torch.iinfo(dtype)
        if not (limits.min <= facts.lower and facts.upper <= limits.max):
            return None
        facts = replace(facts, lower=int(facts.lower), upper=int(facts.upper))
    return None if facts == range_of(dtype) else facts


@lru_cache(maxsize=1024, typed=True)
def stored_number(number: Number, sign: float, dtype: torch.dtype) -> Number:
    """A number once it is stored in a dtype, whatever torch's default dtype is. Its sign tells -0.0
    from 0.0, which are equal.
    """
    given = torch.float64 if isinstance(number, float) else None
    return torch.tensor(number, dtype=given, device=values.HOST).to(dtype).item()


def as_truth(facts: Facts) -> Facts | None:
    """Facts of whether elements are different from zero; they are not all equal."""
    if facts.lower > 0 or facts.upper < 0:
        return replace(constant(1), is_assumed=facts.is_assumed)
    if facts.spans is not None or facts.is_likely:
        return facts
    share = 1 - 1 / facts.size if facts.is_even else facts.share
    return None if share is None else Facts(0, 1, share=share, is_assumed=facts.is_assumed)
