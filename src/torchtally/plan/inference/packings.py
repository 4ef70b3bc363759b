"""How the numbers of one matrix lie in memory: their bits, and the scales beside them.

N: rows of a matrix, its outputs.  K: columns, its inputs, along which groups lie.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """One format of a matrix. Nothing is padded but what is said to be."""

    bits: int | Fraction
    """Of one number. Of llama.cpp's blocks with what lies in them: 4.5 of Q4_K."""
    rows: int = 0
    columns: int = 0
    """Of the block of numbers that share one scale; 0: all of them."""
    scale_bytes: int = 0
    """0: no scales."""
    zero_bits: int = 0
    """Of a block's zero point; 0: symmetric."""
    column_bytes: int = 0
    """Beside each column: GPTQ's `g_idx`, which says the group of each input."""
    tensor_bytes: int = 0
    """Beside each matrix: NVFP4's scale of scales."""
    least_columns: int = 1
    """Rows are a multiple of it, or the matrix gets another format."""

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes of one tensor, or of a stack of matrices that each have scales of their own."""
        *stacked, N, K = shape if len(shape) > 1 else (1, *shape)
        return prod(stacked) * self._matrix_bytes(N, K)

    def _matrix_bytes(self, N: int, K: int) -> int:
        blocks = ceil(N / (self.rows or N)) * ceil(K / (self.columns or K))
        numbers = ceil(N * K * self.bits / 8)
        beside = blocks * self.scale_bytes + ceil(blocks * self.zero_bits / 8)
        return numbers + beside + K * self.column_bytes + self.tensor_bytes

    @property
    def bits_each(self) -> Fraction:
        """Bits of a number of a large matrix, with its share of the block's scale and zero
        point.
        """
        if not (self.rows and self.columns):
            return Fraction(self.bits)
        beside = 8 * self.scale_bytes + self.zero_bits
        return self.bits + Fraction(beside, self.rows * self.columns)


def plain(bits: int) -> Packing:
    """Numbers one after the other, without scales."""
    return Packing(bits=bits)


FLOAT32, FLOAT16 = plain(32), plain(16)
