"""bitsandbytes' operators, by the arguments of its schemas: n = 1024 elements, 4 blocks of 256."""

from tests.work.calls import call, given
from torchtally.ledger.pricing import call_cost
from torchtally.work import Cost, Kind, cost_of
from torchtally.work.convention import Convention

n = 1024


def test_products_of_packed_weights_are_two_for_each_multiply_and_add() -> None:
    """(8, 32) times 32 x 16 numbers, two in a byte."""
    operands = [given("A", 8, 32, dtype="bfloat16"), given("B", 256, 1, dtype="uint8")]
    kind, cost = cost_of(call("bitsandbytes.gemm_4bit", operands, (8, 16)))
    assert (kind, cost.flops) == (Kind.PRODUCT, 2 * 8 * 32 * 16)
    assert cost.bytes_read == 8 * 32 * 2 + 256


def test_dequantising_multiplies_each_element() -> None:
    operands = [given("A", n // 2, 1, dtype="uint8"), given("absmax", 4)]
    _, cost = cost_of(call("bitsandbytes.dequantize_4bit", operands, (n,)))
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (n, n // 2 + 16, 4 * n)


def test_adam_in_8_bits_reads_and_writes_a_byte_for_each_state() -> None:
    """AdamW's 15, and of two states a product and a division each."""
    update = call(
        "bitsandbytes.optimizer_update_8bit_blockwise",
        [
            given("g", n, written=True), given("p", n, written=True),
            given("state1", n, dtype="uint8", written=True),
            given("state2", n, dtype="uint8", written=True),
            given("qmap1", 256, written=True), given("qmap2", 256, written=True),
            given("absmax1", 4, written=True), given("absmax2", 4, written=True),
        ],
        optimizer_name="adam",
    )  # fmt: skip
    kept = 4 * n + 2 * n + 2 * 16
    assert cost_of(update) == (Kind.OPTIMIZER, Cost(19 * n, kept + 4 * n + 2 * 1024, kept))


def test_an_optimizer_without_a_count_is_uncounted() -> None:
    operands = [given("g", n, written=True), given("p", n, written=True)]
    update = call("bitsandbytes.optimizer_update_32bit", operands, optimizer_name="lamb")
    priced = call_cost(update, Convention.FULL)
    assert priced.kind is Kind.UNCOUNTED
    assert "lamb" in priced.failure
