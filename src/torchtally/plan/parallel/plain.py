"""A formula's number alone, where thousands are compared and few are shown."""

from collections.abc import Callable

from torchtally.plan.quantity import FUNCTIONS


def plain_number(formula: str, *words: str) -> Callable[..., float]:
    """The function of these words, in this order, that a `Quantity` with this formula computes.

    Not rounded to a whole number.
    """
    function: Callable[..., float] = eval(
        f"lambda {', '.join(words)}: {formula}", {"__builtins__": {}, **FUNCTIONS}
    )
    return function
