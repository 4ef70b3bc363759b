"""What numbers become in a format: alone, or sharing the scales of its blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from torchtally.number_formats.blocks import BlockScale
from torchtally.number_formats.catalogue import NumberFormat
from torchtally.number_formats.layout import (
    Layout,
    Real,
    Rounded,
    RoundingOutcome,
    bits_text,
    is_finite,
    is_negative_zero,
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A number as a format holds it."""

    value: float
    """Exactly: every format here holds no more than a float64 does."""
    error: float | None
    """Relative to the number. None where there is no such ratio: of 0, of or to inf and NaN."""
    spacing: float | None
    """From the value to the next larger in magnitude. None for inf and NaN."""
    outcome: RoundingOutcome
    bits: str
    """Of the element, in groups: the sign, the exponent, the mantissa. "" in a block whose scale is
    NaN, which makes NaN of every element."""
    scale: float | None
    """What the element is multiplied by. None in a format without scales."""
    scale_bits: str = ""


def convert(format: NumberFormat, reals: Sequence[Real]) -> tuple[Conversion, ...]:
    """The numbers in the format. Where it has blocks, they are one tensor, cut in order."""
    layout = format.layout
    if format.blocks is None:
        return tuple(_alone(real, layout) for real in reals)
    conversions: list[Conversion] = []
    for block in format.blocks.cut(reals):
        scale = format.blocks.scale(block, reals, layout)
        conversions += [_scale(real, layout, scale) for real in block]
    return tuple(conversions)


def _alone(real: Real, layout: Layout) -> Conversion:
    rounded = layout.round(real)
    return Conversion(
        value=float(rounded.value),
        error=_error(real, rounded.value),
        spacing=None if rounded.spacing is None else float(rounded.spacing),
        outcome=rounded.outcome,
        bits=bits_text(rounded.code, layout.widths),
        scale=None,
    )


def _scale(real: Real, layout: Layout, scale: BlockScale) -> Conversion:
    factor = scale.factor
    if not is_finite(factor):
        outcome = RoundingOutcome.EXACT if real != real else RoundingOutcome.OVERFLOW
        return Conversion(math.nan, None, None, outcome, "", math.nan, scale.bits)
    multiplier = Fraction(factor)
    ratio = Fraction(real) / multiplier if multiplier else Fraction(0)
    rounded = layout.round(ratio or (-0.0 if real < 0 or is_negative_zero(real) else 0.0))
    value = Fraction(rounded.value) * multiplier
    spacing = (rounded.spacing or 0) * multiplier
    return Conversion(
        value=float(value) if value else float(rounded.value * 0),  # -0.0 is no fraction
        error=_error(real, value),
        spacing=float(spacing),
        outcome=_outcome(Fraction(real), value, rounded),
        bits=bits_text(rounded.code, layout.widths),
        scale=float(multiplier),
        scale_bits=scale.bits,
    )


def _outcome(real: Fraction, value: Fraction, rounded: Rounded) -> RoundingOutcome:
    """A scale of zero loses what the element cannot tell of."""
    if value == real:
        return RoundingOutcome.EXACT
    return rounded.outcome if value else RoundingOutcome.UNDERFLOW


def _error(real: Real, value: Real) -> float | None:
    if not real or not is_finite(real) or not is_finite(value):
        return None
    exact, held = Fraction(real), Fraction(value)
    return float(abs(held - exact) / abs(exact))
