"""How much of something fits: into memory, by a formula or by trying."""

from collections.abc import Callable

from torchtally.plan.closed_form import Bytes, BytesPerParameter, closed_form
from torchtally.plan.quantity import without_working
from torchtally.units import Unit


@closed_form("largest model", Unit.PARAMETERS)
def largest_parameters(
    memory: Bytes, bytes_per_parameter: BytesPerParameter, other: Bytes = 0
) -> str:
    """The most parameters whose states fit into this memory beside other bytes.

    Those do not grow with them: activations, the CUDA context. With 0 the answer is an upper bound.
    """
    return "floor(max(memory - other, 0) / bytes_per_parameter)"


def largest(fits: Callable[[int], bool], most: int = 1 << 62) -> int:
    """The largest whole number that fits, where everything smaller does too; 0 where 1 does not.

    By doubling and then halving: about twice as many trials as the answer has bits.
    """
    with without_working():
        if most < 1 or not fits(1):
            return 0
        low = 1
        while low < most and fits(min(2 * low, most)):
            low = min(2 * low, most)
        high = min(2 * low, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
