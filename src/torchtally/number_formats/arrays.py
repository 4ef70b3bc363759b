"""Rounding of whole arrays to a format: the same numbers as `convert`, by NumPy.

Imported by itself, so that `tally dtypes 0.1` needs no NumPy.

Numbers are float64 here, which holds every number of the formats of 32 bits and fewer. Multiplying
by a power of two is exact, and so are the quotients as far as rounding to a few bits can tell.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtally.errors import UsageError
from torchtally.number_formats.blocks import E4M3, E8M0_BIAS, BlockLayout, microscaling, nvfp4
from torchtally.number_formats.catalogue import NumberFormat
from torchtally.number_formats.layout import FloatLayout

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RoundedArray:
    """What numbers become, element by element."""

    values: Floats
    """In the numbers' own scale. What overflows is inf, or the largest number with its sign."""
    has_overflowed: Flags
    """To inf, NaN or the largest number."""
    is_subnormal: Flags
    """Held by an element with fewer digits than a normal number has; zero is not one."""


def float_layout(format: NumberFormat) -> FloatLayout:
    """The layout of an element. Raises UsageError for integers, which have no exponents."""
    if not isinstance(format.layout, FloatLayout):
        raise UsageError(
            f"{format.name} holds integers, which neither under- nor overflow under their scale. "
            "Choose among the floating-point formats: --of fp16,bf16,fp8,mxfp8,nvfp4."
        )
    return format.layout


def round_to_layout(values: Floats, layout: FloatLayout) -> RoundedArray:
    """Finite numbers, each by itself, to nearest, ties to even."""
    exponents = np.maximum(np.frexp(values)[1] - 1, layout.least_exponent)
    # Steps below 2**53 times a power of two: neither product loses a digit.
    shifts = layout.mantissa_bits - exponents
    rounded = np.ldexp(np.rint(np.ldexp(values, shifts)), -shifts)
    magnitudes = np.abs(rounded)
    largest = float(layout.largest)
    has_overflowed = magnitudes > largest
    if has_overflowed.any():
        top = np.inf if layout.has_infinity else largest
        rounded = np.where(has_overflowed, np.copysign(top, values), rounded)
    is_subnormal = (magnitudes < float(layout.smallest_normal)) & (magnitudes > 0)
    return RoundedArray(rounded, has_overflowed, is_subnormal)


def round_blocks(
    values: Floats, layout: FloatLayout, blocks: BlockLayout, tensor_largest: float
) -> RoundedArray:
    """Rows of numbers in blocks that share a scale; the last block of a row may be shorter.

    `tensor_largest` is the largest magnitude of the whole tensor: inf where it is not finite.
    """
    size = blocks.size
    assert size is not None, "a scale for a whole row is not for a part of a tensor"
    rows, width = values.shape
    padding = -width % size
    cut = np.pad(values, ((0, 0), (0, padding))).reshape(rows, -1, size)
    largest = np.abs(cut).max(axis=2, keepdims=True)
    if blocks.scale_of is microscaling:
        factors = microscaling_factors(largest, layout)
    else:
        assert blocks.scale_of is nvfp4, blocks
        factors = nvfp4_factors(largest, layout, tensor_largest)
    # inf or NaN in a block make NaN of its scale, and of all its numbers.
    has_scale = np.isfinite(factors)
    safe = np.where(has_scale & (factors > 0), factors, 1.0)
    elements = round_to_layout(np.where(np.isfinite(cut), cut, 0.0) / safe, layout)
    scaled = np.where(factors == 0, 0.0, elements.values * safe)
    lost = ~np.broadcast_to(has_scale, cut.shape)

    def uncut(array: NDArray[np.generic]) -> NDArray[np.generic]:
        return array.reshape(rows, width + padding)[:, :width]

    return RoundedArray(
        uncut(np.where(lost, np.nan, scaled)),  # type: ignore[arg-type]
        uncut(elements.has_overflowed | lost),  # type: ignore[arg-type]
        uncut(elements.is_subnormal & ~lost & (factors > 0)),  # type: ignore[arg-type]
    )


def microscaling_factors(largest: Floats, layout: FloatLayout) -> Floats:
    """A power of two for each block; see `blocks.microscaling`."""
    is_finite = np.isfinite(largest)
    exponents = np.frexp(np.where(is_finite, largest, 1.0))[1] - 1 - layout.largest_exponent
    exponents = np.where(largest == 0, -E8M0_BIAS, exponents)
    factors = np.ldexp(1.0, np.clip(exponents, -E8M0_BIAS, E8M0_BIAS))
    return np.where(is_finite, factors, np.nan)


def nvfp4_factors(largest: Floats, layout: FloatLayout, tensor_largest: float) -> Floats:
    """An e4m3 for each block times a float32 for the tensor; see `blocks.nvfp4`."""
    with np.errstate(over="ignore", under="ignore"):
        of_tensor = float(np.float32(tensor_largest / float(layout.largest * E4M3.largest)))
    if not np.isfinite(of_tensor):
        return np.full(largest.shape, np.nan)
    if of_tensor == 0:
        return np.zeros(largest.shape)
    of_blocks = round_to_layout(largest / (float(layout.largest) * of_tensor), E4M3)
    factors: Floats = of_blocks.values * of_tensor
    return factors


def power_to_largest(largest: float, layout: FloatLayout) -> int:
    """The exponent of the largest power of two that keeps a number of this magnitude within the
    format; 0 where there is no such number.
    """
    if not 0 < largest < np.inf:
        return 0
    mantissa, exponent = np.frexp(largest)
    top_mantissa, top_exponent = np.frexp(float(layout.largest))
    return int(top_exponent - exponent - (mantissa > top_mantissa))
