"""Numbers as a user types them, exactly: 0.1 is one tenth and not the nearest float64."""

import math
import re
from fractions import Fraction

from torchtally.errors import UsageError
from torchtally.number_formats.layout import Real

MOST_CHARACTERS = 400
MOST_POWER = 5000
"""Of ten: far outside every format, and quick to compute with."""
MOST_DOUBLINGS = 20_000
EXAMPLES = "0.1, 1e-8, 1/3, 2**-14, -65504, inf or nan"

DECIMAL = r"\d+\.?\d*|\.\d+"
NUMBER = re.compile(rf"(?P<digits>{DECIMAL})(e(?P<power>[+-]?\d+))?", re.I | re.A)
POWER_OF_TWO = re.compile(r"2\s*(\*\*|\^)\s*\(?(?P<power>[+-]?\d+)\)?", re.A)


def real_of(number: str | float | Fraction) -> Real:
    """The number that a text says, exactly: a decimal, a fraction, a power of two, inf or nan.

    A float is the exact number that it holds. Raises UsageError for anything else.
    """
    if isinstance(number, str):
        return _parse(number)
    if isinstance(number, float) and (not math.isfinite(number) or number == 0):
        return number if number else _zero(math.copysign(1, number) < 0)
    return Fraction(number)


def _parse(text: str) -> Real:
    bare = text.strip().lower()
    sign, bare = (bare[0], bare[1:].strip()) if bare[:1] in ("-", "+") else ("", bare)
    is_negative = sign == "-"
    if bare in ("inf", "infinity"):
        return -math.inf if is_negative else math.inf
    if bare == "nan":
        return math.nan
    numerator, slash, denominator = bare.partition("/")
    if len(bare) > MOST_CHARACTERS:
        raise _wrong(text)
    magnitude = _magnitude(numerator, text)
    if slash:
        divisor = _magnitude(denominator, text)
        if not divisor:
            raise UsageError(
                f"{_short(text)} divides by zero. inf and nan are values of their own."
            )
        magnitude /= divisor
    if not magnitude:
        return _zero(is_negative)
    return -magnitude if is_negative else magnitude


def _magnitude(bare: str, text: str) -> Fraction:
    bare = bare.strip()
    if match := POWER_OF_TWO.fullmatch(bare):
        return Fraction(2) ** _power(match["power"], MOST_DOUBLINGS, text)
    if match := NUMBER.fullmatch(bare):
        power = _power(match["power"] or "0", MOST_POWER, text)
        return Fraction(match["digits"]) * Fraction(10) ** power
    raise _wrong(text)


def _power(digits: str, most: int, text: str) -> int:
    power = int(digits)
    if abs(power) > most:
        raise UsageError(f"{_short(text)}: expected a power of at most {most}, got {digits}.")
    return power


def _zero(is_negative: bool) -> Real:
    return -0.0 if is_negative else Fraction(0)


def _wrong(text: str) -> UsageError:
    return UsageError(f"{_short(text)} is not a number. These work: {EXAMPLES}.")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
