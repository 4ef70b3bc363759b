"""How the bits of one number are laid out, and rounding to it: exact, to nearest, ties to even.

A real number is a `Fraction`; a float stands for -0.0, inf, -inf and NaN, which are no fractions.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

Real = Fraction | float


class Top(StrEnum):
    """What the codes with all exponent bits set mean."""

    IEEE = "inf and NaN"
    """IEEE 754: no numbers. What overflows is inf."""
    ONE_NAN = "numbers, and one NaN"
    """OCP 8-bit floating point, e4m3: all ones are NaN, there is no inf."""
    NUMBERS = "numbers"
    """OCP microscaling formats of 6 and 4 bits: neither inf nor NaN."""


class RoundingOutcome(StrEnum):
    """What became of a number."""

    EXACT = "exact"
    ROUNDED = "rounded"
    SUBNORMAL = "subnormal"
    """Rounded to fewer digits than a normal number has."""
    UNDERFLOW = "underflow"
    """To zero."""
    OVERFLOW = "overflow"
    """To inf, or to NaN."""
    SATURATED = "saturated"
    """To the largest number."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A number of a format, nearest to another one."""

    value: Real
    code: int
    """Its bits, as a whole number."""
    spacing: Fraction | None
    """From this number to the next larger in magnitude. None for inf and NaN."""
    outcome: RoundingOutcome


@dataclass(frozen=True, slots=True)
class FloatLayout:
    """A sign, an exponent and a mantissa, whose first one is not stored."""

    exponent_bits: int
    mantissa_bits: int
    top: Top = Top.IEEE
    saturates: bool = False
    """What is too large becomes the largest number, although there is inf: in blocks."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits of the sign, the exponent and the mantissa."""
        return 1, self.exponent_bits, self.mantissa_bits

    @property
    def bias(self) -> int:
        """What the stored exponent is larger by: 127 in float32."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def least_exponent(self) -> int:
        """Least exponent of normal numbers; subnormal ones have it, too."""
        return 1 - self.bias

    @property
    def largest_exponent(self) -> int:
        return (1 << self.exponent_bits) - (2 if self.top is Top.IEEE else 1) - self.bias

    @property
    def largest(self) -> Fraction:
        steps = (2 << self.mantissa_bits) - (2 if self.top is Top.ONE_NAN else 1)
        return steps * self.spacing_at(self.largest_exponent)

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(2) ** self.least_exponent

    @property
    def smallest_subnormal(self) -> Fraction:
        return self.spacing_at(self.least_exponent)

    @property
    def has_infinity(self) -> bool:
        """What is too large becomes inf; otherwise the largest number."""
        return self.top is Top.IEEE and not self.saturates

    @property
    def spacing_at_one(self) -> Fraction:
        """torch.finfo's eps."""
        return self.spacing_at(0)

    def spacing_at(self, exponent: int) -> Fraction:
        """Spacing from one number to the next, from 2**exponent to twice that."""
        return Fraction(2) ** (exponent - self.mantissa_bits)

    def round(self, real: Real) -> Rounded:
        """The nearest number of this format; of two as near, the one whose last bit is 0."""
        is_negative = real < 0 or is_negative_zero(real)
        if not is_finite(real):
            if real != real:
                return self._nan(is_negative)
            beyond = self._beyond(is_negative)
            return (
                replace(beyond, outcome=RoundingOutcome.EXACT) if beyond.value == real else beyond
            )
        magnitude = abs(Fraction(real))
        exponent = max(exponent_of(magnitude), self.least_exponent)
        spacing = self.spacing_at(exponent)
        steps = round(magnitude / spacing)  # of two as near, Python takes the even one
        value = steps * spacing
        if value > self.largest:
            return self._beyond(is_negative)
        # A carry out of the mantissa goes on into the exponent: the code is one number.
        lead = 1 << self.mantissa_bits
        code = steps if steps < lead else ((exponent + self.bias - 1) << self.mantissa_bits) + steps
        return Rounded(
            _with_sign(value, is_negative),
            code | self._sign(is_negative),
            spacing if steps < 2 * lead else 2 * spacing,
            self._outcome(magnitude, value),
        )

    def decode(self, code: int) -> Real:
        """The number that these bits are."""
        is_negative = bool(code >> (self.exponent_bits + self.mantissa_bits))
        mantissa = code & ((1 << self.mantissa_bits) - 1)
        exponent = (code >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        is_top = exponent == (1 << self.exponent_bits) - 1
        if is_top and self.top is Top.IEEE:
            return math.nan if mantissa else -math.inf if is_negative else math.inf
        if is_top and self.top is Top.ONE_NAN and mantissa == (1 << self.mantissa_bits) - 1:
            return math.nan
        steps = mantissa + (bool(exponent) << self.mantissa_bits)
        value = steps * self.spacing_at(max(exponent - self.bias, self.least_exponent))
        return _with_sign(value, is_negative)

    def _outcome(self, magnitude: Fraction, value: Fraction) -> RoundingOutcome:
        if value == magnitude:
            return RoundingOutcome.EXACT
        if value == 0:
            return RoundingOutcome.UNDERFLOW
        return (
            RoundingOutcome.SUBNORMAL if value < self.smallest_normal else RoundingOutcome.ROUNDED
        )

    def _sign(self, is_negative: bool) -> int:
        return int(is_negative) << (self.exponent_bits + self.mantissa_bits)

    def _beyond(self, is_negative: bool) -> Rounded:
        """What is too large: inf where the format has it, otherwise (or where it saturates) the
        largest number.
        """
        if self.has_infinity:
            code = ((1 << self.exponent_bits) - 1) << self.mantissa_bits
            infinity = -math.inf if is_negative else math.inf
            return Rounded(infinity, code | self._sign(is_negative), None, RoundingOutcome.OVERFLOW)
        exponent = self.largest_exponent + self.bias
        steps = int(self.largest / self.spacing_at(self.largest_exponent))
        return Rounded(
            -self.largest if is_negative else self.largest,
            (((exponent - 1) << self.mantissa_bits) + steps) | self._sign(is_negative),
            self.spacing_at(self.largest_exponent),
            RoundingOutcome.SATURATED,
        )

    def _nan(self, is_negative: bool) -> Rounded:
        """A quiet NaN. A format without NaN takes the largest number, as for inf."""
        if self.top is Top.NUMBERS:
            return self._beyond(is_negative)
        ones = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        quiet = ones if self.top is Top.ONE_NAN else ones ^ (ones >> (self.exponent_bits + 1))
        return Rounded(math.nan, quiet, None, RoundingOutcome.EXACT)


@dataclass(frozen=True, slots=True)
class IntegerLayout:
    """A whole number in two's complement."""

    bits: int

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.bits,)

    @property
    def largest(self) -> Fraction:
        return Fraction((1 << (self.bits - 1)) - 1)

    @property
    def least(self) -> Fraction:
        return -self.largest - 1

    @property
    def smallest_normal(self) -> None:
        return None

    @property
    def smallest_subnormal(self) -> None:
        return None

    @property
    def spacing_at_one(self) -> Fraction:
        return Fraction(1)

    def round(self, real: Real) -> Rounded:
        """The nearest whole number from the negative of the largest up to the largest.

        Two's complement has one more below zero, which scaled formats leave unused, so that what
        is positive and what is negative round alike.
        """
        assert is_finite(real), "integers have neither inf nor NaN"
        nearest = Fraction(round(Fraction(real)))
        value = max(-self.largest, min(nearest, self.largest))
        outcome = (
            RoundingOutcome.EXACT
            if value == real
            else RoundingOutcome.SATURATED
            if value != nearest
            else RoundingOutcome.UNDERFLOW
            if value == 0
            else RoundingOutcome.ROUNDED
        )
        return Rounded(value, int(value) & ((1 << self.bits) - 1), Fraction(1), outcome)


Layout = FloatLayout | IntegerLayout


def is_finite(real: Real) -> bool:
    """Neither inf nor NaN. `math.isfinite` makes a float first, which a fraction may be beyond."""
    return isinstance(real, Fraction) or math.isfinite(real)


def is_negative_zero(real: Real) -> bool:
    return isinstance(real, float) and not real and math.copysign(1, real) < 0


def exponent_of(magnitude: Fraction) -> int:
    """The largest whole number whose power of two is not above it; of zero, below all others."""
    if not magnitude:
        return -(1 << 30)
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if Fraction(2) ** guess <= magnitude else guess - 1


def bits_text(code: int, widths: Iterable[int]) -> str:
    """The bits of a code in groups of these widths: "0 01111 1001100110"."""
    widths = list(widths)
    bits = f"{code:0{sum(widths)}b}"
    ends = [sum(widths[: count + 1]) for count in range(len(widths))]
    return " ".join(bits[end - width : end] for end, width in zip(ends, widths, strict=True))


def _with_sign(magnitude: Fraction, is_negative: bool) -> Real:
    """-0.0 is no fraction."""
    if is_negative:
        return -magnitude if magnitude else -0.0
    return magnitude
