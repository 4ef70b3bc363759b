"""Laws that every public function of `napkin` obeys: which way it goes, in which unit it answers.

    law(training_s, SECONDS, flops=rises(FLOPS), chips=falls(CHIPS), ...)

says that more FLOPs take no less time, and more chips no more. `test_laws.py` tries each on random
numbers, and holds that no public function is without one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from hypothesis import strategies as st

from torchtally.plan.quantity import Quantity
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a law: what it may be, and which way the result goes with it."""

    values: st.SearchStrategy[Any]
    direction: int = 0
    """1: the result does not fall when it rises; -1: it does not rise; 0: neither is claimed."""


def rises(values: st.SearchStrategy[Any]) -> Argument:
    return Argument(values, 1)


def falls(values: st.SearchStrategy[Any]) -> Argument:
    return Argument(values, -1)


def either(values: st.SearchStrategy[Any]) -> Argument:
    return Argument(values, 0)


@dataclass(frozen=True, slots=True)
class Law:
    """What one function promises for all arguments."""

    function: Callable[..., Any]
    unit: Unit
    arguments: Mapping[str, Argument]
    result: Callable[[Any], Quantity] = lambda found: found
    """The number that the directions are about, of what the function returns."""
    examples: int = 40
    """How many pairs of arguments are tried."""


def quantities(found: object) -> Iterator[Quantity]:
    """All quantities of a result, whatever it holds them in."""
    if isinstance(found, Quantity):
        yield found
    elif isinstance(found, tuple | list):
        for part in found:
            yield from quantities(part)
    elif is_dataclass(found):
        for field in fields(found):
            yield from quantities(getattr(found, field.name))


def whole(least: int, most: int) -> st.SearchStrategy[int]:
    """Whole numbers of every size between, small ones as often as large ones."""
    sizes = st.integers(least.bit_length(), most.bit_length())
    return sizes.flatmap(
        lambda bits: st.integers(
            max(least, (1 << bits) >> 1), min(most, max(least, (1 << bits) - 1))
        )
    )


def real(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most, allow_nan=False, allow_infinity=False)
