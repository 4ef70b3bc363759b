"""Numbers that share a scale: microscaling (MX) and NVFP4 blocks, integers of one scale.

A number is stored as the element nearest to number / scale, and stands for element * scale.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torchtally.number_formats.layout import (
    FloatLayout,
    IntegerLayout,
    Layout,
    Real,
    Top,
    bits_text,
    exponent_of,
    is_finite,
)

FLOAT32 = FloatLayout(8, 23)
E4M3 = FloatLayout(4, 3, Top.ONE_NAN)
E8M0_BIAS = 127
"""Of the scale of an MX block: a power of two from 2**-127 to 2**127, and NaN as its code 255."""


@dataclass(frozen=True, slots=True)
class BlockScale:
    """What the elements of one block are multiplied by."""

    factor: Real
    """NaN where a number of the block is inf or NaN, or too large for the scale."""
    bits: str
    """As stored beside the block."""


ScaleOf = Callable[[Layout, Fraction, Fraction], BlockScale]
"""The scale of a block by its elements' layout, its largest magnitude and that of the tensor."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How numbers are cut into blocks, and what scale a block has."""

    size: int | None
    """Numbers that share a scale. None: all of a tensor's row."""
    scale_of: ScaleOf
    widths: tuple[int, ...]
    """Bits of the scale: of its sign, its exponent and its mantissa, as far as it has them."""
    needs_tensor: bool = False
    """The scale depends on all numbers of the tensor, not on those of the block alone."""

    def cut(self, reals: Sequence[Real]) -> list[Sequence[Real]]:
        """The blocks, in order; the last may be shorter."""
        size = self.size or max(len(reals), 1)
        return [reals[start : start + size] for start in range(0, len(reals), size)]

    def scale(self, block: Sequence[Real], tensor: Sequence[Real], element: Layout) -> BlockScale:
        """The scale of a block of a tensor."""
        others = tensor if self.needs_tensor else block
        if not all(map(is_finite, others)):
            return self.no_scale()
        scale = self.scale_of(element, _largest(block), _largest(others))
        return scale if is_finite(scale.factor) else self.no_scale()

    def no_scale(self) -> BlockScale:
        """All ones, which every format of scales has as a NaN."""
        return BlockScale(math.nan, bits_text((1 << sum(self.widths)) - 1, self.widths))


def microscaling(element: Layout, block: Fraction, tensor: Fraction) -> BlockScale:
    """A power of two that brings the largest number to the elements' largest exponent.

    OCP Microscaling Formats Specification 1.0, section 6.3. What is then above the elements'
    largest number saturates.
    """
    assert isinstance(element, FloatLayout)
    exponent = exponent_of(block) - element.largest_exponent
    stored = max(0, min(exponent + E8M0_BIAS, 2 * E8M0_BIAS))
    return BlockScale(Fraction(2) ** (stored - E8M0_BIAS), bits_text(stored, (8,)))


def nvfp4(element: Layout, block: Fraction, tensor: Fraction) -> BlockScale:
    """A float32 for the tensor and an e4m3 for the block, as NVIDIA trains with NVFP4.

    The tensor's brings its largest number to 6 * 448, the largest element times the largest
    e4m3; the block's brings what is largest in it to 6 (arXiv 2509.25149, appendix C).
    """
    of_tensor = FLOAT32.round(tensor / (element.largest * E4M3.largest)).value
    if not is_finite(of_tensor):
        return BlockScale(of_tensor, "")
    if not of_tensor:  # all are zero, or too small for a float32
        return BlockScale(Fraction(0), bits_text(0, E4M3.widths))
    of_block = E4M3.round(block / element.largest / Fraction(of_tensor))
    return BlockScale(
        Fraction(of_block.value) * Fraction(of_tensor), bits_text(of_block.code, E4M3.widths)
    )


def symmetric(element: Layout, block: Fraction, tensor: Fraction) -> BlockScale:
    """A float32 that brings the largest number to the largest integer.

    LLM.int8(), arXiv 2208.07339, section 2.1: absmax quantisation.
    """
    assert isinstance(element, IntegerLayout)
    rounded = FLOAT32.round(block / element.largest)
    return BlockScale(rounded.value, bits_text(rounded.code, FLOAT32.widths))


def _largest(reals: Sequence[Real]) -> Fraction:
    return max((abs(Fraction(real)) for real in reals), default=Fraction(0))
