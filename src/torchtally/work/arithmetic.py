"""Real FLOPs of one addition or multiplication, which depend on the dtype alone.

Complex numbers: an addition is 2 real FLOPs, a multiplication 6 (4 multiplies, 2 adds), a
multiply-add 8 (Blackford & Dongarra, LAPACK Working Note 41, appendix C).
"""

from torchtally.trace import TensorSpec

COMPLEX_ADD = 2
COMPLEX_MULTIPLY = 6
COMPLEX_DIVIDE = 11
"""(a + bi) / (c + di) = (a + bi)(c - di) / (c^2 + d^2): a multiply, 3 for the square, 2 divides."""


def is_complex(spec: TensorSpec) -> bool:
    return spec.dtype.startswith("complex")


def add_flops(spec: TensorSpec) -> int:
    """FLOPs of adding two of this tensor's elements."""
    return COMPLEX_ADD if is_complex(spec) else 1


def multiply_add_flops(spec: TensorSpec) -> int:
    """FLOPs of one term of a product's sum: 2, complex 8."""
    return COMPLEX_MULTIPLY + COMPLEX_ADD if is_complex(spec) else 2
