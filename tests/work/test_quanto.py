"""optimum-quanto's operators: 512 numbers in 4 bits, 64 to a scale."""

from tests.work.calls import call, given
from torchtally.work import cost_of


def test_quantising_is_five_for_each_number() -> None:
    """Divided, shifted, rounded, and two bounds; read in 2 bytes, written in one."""
    operands = [
        given("base", 512, dtype="bfloat16"),
        given("scale", 8, dtype="bfloat16"),
        given("shift", 8, dtype="bfloat16"),
    ]
    _, cost = cost_of(call("quanto.quantize_affine", operands, (8, 64)))
    assert (cost.flops, cost.bytes_read) == (5 * 512, 1024 + 32)


def test_unpacking_masks_and_shifts_each_number() -> None:
    _, cost = cost_of(call("quanto.unpack", [given("self", 256, dtype="uint8")], (512,)))
    assert (cost.flops, cost.bytes_read) == (2 * 512, 256)
