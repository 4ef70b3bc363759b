"""xformers.ops.fmha."""

from . import attn_bias
from .attn_bias import BlockDiagonalMask, LowerTriangularMask

__all__ = ["BlockDiagonalMask", "LowerTriangularMask", "attn_bias"]
