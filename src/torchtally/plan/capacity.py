"""How much of something fits: into memory, by a formula or by trying."""

from collections.abc import Callable

from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit


def largest_parameters(
    memory_bytes: Amount, bytes_per_parameter: Amount, other_bytes: Amount = 0
) -> Quantity:
    """The most parameters whose states fit into this memory beside `other_bytes`.

    `other_bytes` are those that do not grow with them: activations, the CUDA context. Where they
    are left at 0, the answer is an upper bound.
    """
    return derive(
        "largest model",
        Unit.PARAMETERS,
        "floor(max(memory - other, 0) / bytes_per_parameter)",
        memory=of(memory_bytes, Unit.BYTES),
        other=of(other_bytes, Unit.BYTES),
        bytes_per_parameter=of(bytes_per_parameter, Unit.BYTES_PER_PARAMETER),
    )


def largest(fits: Callable[[int], bool], most: int = 1 << 62) -> int:
    """The largest whole number that fits, where everything smaller does too; 0 where 1 does not.

    By doubling and then halving: about twice as many trials as the answer has bits.
    """
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
