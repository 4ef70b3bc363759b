"""Kernels that a compiler fused: by their bytes, or by the instructions that their elements take.

    seconds = max(bytes / bandwidth, instructions / rate) + TRITON_S

Most are bound by bytes. Where elements take special functions (GELU's erf, an online softmax's
exponentials, random numbers, the angles of rotary embeddings) instructions count: a multiprocessor
issues one for each of its lanes per clock.
"""

from torchtally.chips import Chip
from torchtally.timing.constants import ISSUED_SHARE, TRITON_S
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import NOTHING, bound_kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, vector_peak_flop_per_s
from torchtally.trace import Call
from torchtally.work import Cost

INSTRUCTIONS = {
    "add": 1, "sub": 1, "mul": 1, "neg": 1, "abs": 1, "fma": 1, "sum": 1, "prod": 1,
    "maximum": 4, "minimum": 4, "max": 4, "min": 4, "argmax": 6, "argmin": 6,
    "truediv": 9, "reciprocal": 8, "sqrt": 9, "rsqrt": 1,
    "floordiv": 18, "truncdiv": 18, "remainder": 18, "mod": 18, "fmod": 61,
    "exp": 5, "exp2": 1, "expm1": 26, "sigmoid": 12, "pow": 45,
    "log": 26, "log2": 28, "log10": 28, "log1p": 30,
    "erf": 29, "erfc": 48, "erfinv": 56, "lgamma": 211,
    "sin": 30, "cos": 31, "tan": 35, "asin": 18, "acos": 18, "atan": 50, "atan2": 50,
    "tanh": 22, "sinh": 34, "cosh": 34,
    "rand": 91, "randn": 208,
    "online_softmax_reduce": 30, "welford_reduce": 15,
}  # fmt: skip
"""Of one element of float32, by inductor's names (torch/_inductor/ops_handler.py): as counted in
the machine code that triton makes for an H100 (`nvdisasm` of kernels of one function, over that of
a copy), on the way that ordinary numbers take: `sin` below 105615, `pow` of a constant. The upper
halves of products in random numbers (16, Philox) count four each: those go at a quarter of the
rate. What is not here overlaps with memory, or is computed once for many elements: loads,
conversions, comparisons.
"""


def fused_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """A kernel without a product in it."""
    assert call.fused is not None
    if cost.bytes == 0 and cost.flops == 0:
        return NOTHING
    return bound_kernel(
        compute_s=instructions_s(call, chip, else_count=cost.flops),
        memory_s=cost.bytes / bandwidth_bytes_per_s(chip),
        overhead_s=TRITON_S,
    )


def instructions_s(call: Call, chip: Chip, *, else_count: int = 0) -> float:
    """Seconds for the instructions of its elements; of so many where they are not known."""
    lanes_per_s = (vector_peak_flop_per_s("float32", chip) or 0.0) / 2
    instructions = instructions_of(call) or else_count
    return instructions / (ISSUED_SHARE * lanes_per_s) if lanes_per_s else 0.0


def instructions_of(call: Call) -> int:
    """That a fused kernel's elements take; 0 where it is not known what it computes."""
    assert call.fused is not None
    return sum(times * INSTRUCTIONS.get(name, 0) for name, times in call.fused.operations)
