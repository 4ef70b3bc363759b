"""Closed forms as functions: the signature gives the terms and their units, the body the formula.

    @closed_form("cost", Unit.USD)
    def cost_usd(chip_hours: Hours, usd_per_hour: UsdPerHour) -> str:
        return "chip_hours * usd_per_hour"

`cost_usd(8, 2.5)` is a `Quantity` of 20 USD. A plain number takes the unit of its annotation; a
quantity must be in it. Terms are listed in the formula's order; arguments it does not use are none.
"""

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import signature
from typing import Annotated, Any, ParamSpec

from torchtally.plan.quantity import FUNCTIONS, Amount, Quantity, derive, of
from torchtally.units import Unit

Terms = ParamSpec("Terms")

Bytes = Annotated[Amount, Unit.BYTES]
BytesEach = Annotated[Amount, Unit.BYTES_EACH]
BytesPerParameter = Annotated[Amount, Unit.BYTES_PER_PARAMETER]
BytePerS = Annotated[Amount, Unit.BYTE_PER_S]
Chips = Annotated[Amount, Unit.CHIPS]
Count = Annotated[Amount, Unit.COUNT]
Flops = Annotated[Amount, Unit.FLOPS]
FlopsPerToken = Annotated[Amount, Unit.FLOPS_PER_TOKEN]
FlopPerS = Annotated[Amount, Unit.FLOP_PER_S]
Fraction = Annotated[Amount, Unit.FRACTION]
Hours = Annotated[Amount, Unit.HOURS]
Joules = Annotated[Amount, Unit.JOULES]
Number = Annotated[Amount, Unit.NUMBER]
ParameterCount = Annotated[Amount, Unit.PARAMETERS]
Seconds = Annotated[Amount, Unit.SECONDS]
Tokens = Annotated[Amount, Unit.TOKENS]
TokenPerS = Annotated[Amount, Unit.TOKEN_PER_S]
Usd = Annotated[Amount, Unit.USD]
UsdPerHour = Annotated[Amount, Unit.USD_PER_HOUR]
Watts = Annotated[Amount, Unit.WATTS]


def closed_form(
    name: str, unit: Unit, source: str = "", note: str = ""
) -> Callable[[Callable[Terms, str]], Callable[Terms, Quantity]]:
    """Make a function that returns a formula one that returns the formula's quantity.

    The result raises what `of` and `derive` raise: UsageError for an amount that cannot be or a
    zero that must not be, AssertionError for a quantity of another unit.
    """

    def declare(formula: Callable[Terms, str]) -> Callable[Terms, Quantity]:
        parameters = signature(formula).parameters.values()
        units = {term.name: term.annotation.__metadata__[0] for term in parameters}
        defaults = {term.name: term.default for term in parameters}

        @wraps(formula)
        def evaluate(*args: Terms.args, **kwargs: Terms.kwargs) -> Quantity:
            text = formula(*args, **kwargs)
            amounts: dict[str, Any] = dict(zip(units, args, strict=False))
            if len(amounts) < len(units):
                amounts = defaults | amounts | kwargs
            terms = {word: of(amounts[word], units[word]) for word in words_of(text)}
            return derive(name, unit, text, source, note, **terms)

        return evaluate

    return declare


@lru_cache(maxsize=1024)
def words_of(formula: str) -> tuple[str, ...]:
    """The words that a formula takes terms for, each once, in its order."""
    words = dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*", formula))
    return tuple(word for word in words if word not in (*FUNCTIONS, "if", "else"))
