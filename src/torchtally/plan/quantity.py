"""A number that knows where it comes from: its formula, the numbers put in, and who published it.

The formula that is shown is the one that is computed: it is written once, as text, and evaluated.
Terms are quantities themselves, so an answer carries its whole working.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import msgspec

from torchtally.errors import UsageError
from torchtally.units import WHOLE, Unit

FUNCTIONS = {
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log2": math.log2,
    "max": max,
    "min": min,
}
"""What a formula may call."""


class Quantity(msgspec.Struct, frozen=True):
    """A number with its unit; given, or derived from others by a formula.

    A struct: a plan makes tens of thousands, and a frozen dataclass takes four times as long to.
    """

    name: str
    value: int | float
    """An int where the unit is counted in ints (`Unit.is_whole`)."""
    unit: Unit
    formula: str = ""
    """In Python's notation, over the names of `terms`: "6 * parameters * tokens". "" of what is
    given."""
    terms: tuple[tuple[str, "Quantity"], ...] = ()
    source: str = ""
    """Where the formula, or a given number, was published."""
    note: str = ""
    """What a reader must know: an assumption, an estimate."""

    @property
    def is_given(self) -> bool:
        return not self.formula

    def working(self) -> tuple["Quantity", ...]:
        """Every step of the arithmetic, terms before what is made of them; this one is the last."""
        return tuple(_steps(self, set()))

    def with_name(self, name: str) -> "Quantity":
        """The same number under another name."""
        # By far the commonest change: msgspec.structs.replace takes a multiple of the time.
        return Quantity(
            name, self.value, self.unit, self.formula, self.terms, self.source, self.note
        )

    def with_note(self, note: str) -> "Quantity":
        """The same number with another note."""
        return msgspec.structs.replace(self, note=note)


_has_working = ContextVar("has_working", default=True)


@contextmanager
def without_working() -> Iterator[None]:
    """Derive the same numbers without keeping their terms: for thousands that are only compared."""
    token = _has_working.set(False)
    try:
        yield
    finally:
        _has_working.reset(token)


Amount = int | float | Quantity
"""What a formula takes: a plain number, or a quantity with its own working."""


def of(amount: Amount, unit: Unit, name: str = "") -> Quantity:
    """The amount as a quantity of this unit.

    Raises UsageError for a negative, infinite or NaN number, AssertionError for a quantity of
    another unit: FLOPs are not FLOP/s.
    """
    if isinstance(amount, Quantity):
        assert amount.unit is unit, f"{amount.name} is in {amount.unit}, expected {unit}"
        return amount
    if not (math.isfinite(amount) and amount >= 0):
        what = name or str(unit)
        raise UsageError(
            f"{what} cannot be {amount}: expected a finite number that is not negative."
        )
    return Quantity(name, _number(amount, unit), unit)


def derive(
    name: str, unit: Unit, formula: str, source: str = "", note: str = "", /, **terms: Quantity
) -> Quantity:
    """What the formula says of these terms. A term without a name is called by its word in it.

    Where the unit is counted in ints, the result is rounded to one. Raises UsageError where a term
    is zero that must not be, or the result is too large for a float.
    """
    try:
        value = _function(formula, tuple(terms))(*[term.value for term in terms.values()])
    except ZeroDivisionError:
        zeros = [term.name or word for word, term in terms.items() if not term.value]
        raise UsageError(f"{name} is undefined where {' or '.join(zeros)} is 0.") from None
    except OverflowError:
        of_terms = ", ".join(term.name or word for word, term in terms.items())
        raise UsageError(f"{name} is too large to count, by {of_terms}.") from None
    if not _has_working.get():
        return Quantity(name, _number(value, unit), unit, formula, (), source, note)
    named = tuple(
        [
            (word, term if term.name else term.with_name(_in_words(word)))
            for word, term in terms.items()
        ]
    )
    return Quantity(name, _number(value, unit), unit, formula, named, source, note)


def total(name: str, unit: Unit, terms: Mapping[str, Quantity], *, note: str = "") -> Quantity:
    """The sum of terms of one unit, by their words in the formula."""
    for term in terms.values():
        assert term.unit is unit, f"{term.name} is in {term.unit}, expected {unit}"
    return derive(name, unit, " + ".join(terms) or "0", "", note, **terms)


def total_s(name: str, **terms: Quantity) -> Quantity:
    """The sum of seconds, by their words in the formula."""
    return total(name, Unit.SECONDS, terms)


@lru_cache(maxsize=4096)
def _function(formula: str, words: tuple[str, ...]) -> Callable[..., int | float]:
    """What computes the formula from the numbers of these words."""
    function: Callable[..., int | float] = eval(
        f"lambda {', '.join(words)}: {formula}", {"__builtins__": {}, **FUNCTIONS}
    )
    return function


def _number(value: int | float, unit: Unit) -> int | float:
    """An int where the unit is counted in ints, or where a float is one: sums stay exact."""
    if type(value) is int:
        return value
    return round(value) if unit in WHOLE or value == round(value) else value


@lru_cache(maxsize=1024)
def _in_words(word: str) -> str:
    """A term's word as prose; the unit at its end is said by the number itself."""
    for suffix in ("_flop_per_s", "_bytes_per_s", "_per_s", "_bytes", "_flops", "_s"):
        word = word.removesuffix(suffix)
    return word.replace("_", " ")


def _steps(quantity: Quantity, visited: set[int]) -> Iterator[Quantity]:
    if id(quantity) in visited:
        return
    visited.add(id(quantity))
    for _, term in quantity.terms:
        yield from _steps(term, visited)
    yield quantity
