"""Softmax and layer norm: which kernel has a row, and how often it is read, on a chip of 1 TB/s."""

from dataclasses import replace

import pytest

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given, spec
from torchtally.chips import Chip, chip
from torchtally.timing.constants import (
    BLOCKS_OF_1024,
    CLOCK_HZ,
    KERNEL_S,
    LONG_ROW_BYTES_PER_S,
    LONG_ROW_S,
    NORM_FIRST_S,
    NORM_ROW_S,
    SPLIT_ABOVE_ROWS,
    WARP_SLOTS_PER_S,
    WEIGHT_ROWS_S,
)
from torchtally.timing.roofline.rows import SINCE_AMPERE
from torchtally.trace import Call

ROWS = 4000


def softmax(columns: int, dtype: str = "float32", name: str = "_softmax") -> Call:
    rows = [given("self", ROWS, columns, dtype=dtype)]
    return call(f"aten.{name}", rows, spec(ROWS, columns, dtype=dtype), dim=-1)


def layer_norm(rows: int, columns: int, dtype: str = "float32") -> Call:
    inputs = [given("input", rows, columns, dtype=dtype), given("weight", columns, dtype=dtype)]
    outputs = spec(rows, columns, dtype=dtype), spec(rows, 1), spec(rows, 1)
    return call("aten.native_layer_norm", inputs, *outputs, normalized_shape=(columns,))


def seconds(one: Call, on: Chip) -> float:
    return kernel_of(one, on).seconds


def block_s(moved_bytes: float, on: Chip) -> float:
    assert on.multiprocessors is not None
    return moved_bytes / (SINCE_AMPERE.block * on.multiprocessors)


def test_a_short_row_stays_in_a_warp() -> None:
    moved = 2 * 4 * ROWS * 2048  # read and written
    many = toy(multiprocessors=1000)
    expected = moved / 1e12 + moved / (SINCE_AMPERE.warp * 1000) + KERNEL_S
    assert seconds(softmax(2048), many) == pytest.approx(expected)


@pytest.mark.parametrize("columns", [129, 200, 256])
def test_a_warp_takes_its_row_for_the_next_power_of_two(columns: int) -> None:
    expected = ROWS * 256 / (10 * WARP_SLOTS_PER_S) + KERNEL_S
    assert seconds(softmax(columns, "float16"), toy()) == pytest.approx(expected)


def test_a_longer_one_waits_for_its_block() -> None:
    moved = 2 * 4 * ROWS * 2052  # 8208 bytes: on 16
    assert seconds(softmax(2052), toy()) == pytest.approx(
        moved / 1e12 + block_s(moved, toy()) + KERNEL_S
    )


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_a_row_beyond_shared_memory_is_read_three_times(name: str) -> None:
    full = toy(l2_cache_bytes=1, multiprocessors=1000)
    expected = 4 * 4 * ROWS * 16384 / 1e12 + KERNEL_S
    assert seconds(softmax(16384, name=name), full) == pytest.approx(expected)


def test_a_cache_that_holds_the_rows_at_work_saves_reading_them_again() -> None:
    # 2 rows of 64 KiB on each of 1000 multiprocessors, in half a cache of 500 MiB: a half misses
    at_work = 2 * 1000 * 65536
    half = toy(l2_cache_bytes=4 * at_work, multiprocessors=1000)
    expected = (2 + 2 * 0.5) * 4 * ROWS * 16384 / 1e12 + KERNEL_S
    assert seconds(softmax(16384), half) == pytest.approx(expected)
    large = toy(l2_cache_bytes=10 * at_work, multiprocessors=1000)
    assert seconds(softmax(16384), large) < seconds(softmax(16384), half)


def test_an_odd_row_waits_for_its_block() -> None:
    row_s = LONG_ROW_S + 2 * 2 * 5185 / LONG_ROW_BYTES_PER_S
    expected = ROWS / (BLOCKS_OF_1024 * 10) * row_s + KERNEL_S
    assert seconds(softmax(5185, "bfloat16"), toy()) == pytest.approx(expected)


# tests/truth/corpus: 8192 rows, and 4096 in float32; 3137 in timesformer's profile
@pytest.mark.parametrize(
    ("name", "columns", "dtype", "measured_s"),
    [
        ("_log_softmax", 50257, "bfloat16", 712e-6),
        ("_log_softmax", 32000, "bfloat16", 544e-6),
        ("_log_softmax", 30522, "float16", 518e-6),
        ("_log_softmax_backward_data", 50257, "bfloat16", 1099e-6),
        ("_log_softmax_backward_data", 32000, "bfloat16", 690e-6),
        ("_log_softmax_backward_data", 30522, "float16", 648e-6),
    ],
)
def test_long_rows_on_an_h100(name: str, columns: int, dtype: str, measured_s: float) -> None:
    inputs = [given("grad_output", 8192, columns, dtype=dtype)] * (1 + ("backward" in name))
    one = call(f"aten.{name}", inputs, spec(8192, columns, dtype=dtype), dim=-1)
    assert seconds(one, chip("H100-SXM")) == pytest.approx(measured_s, rel=0.1)


def test_an_odd_short_row_costs_nothing_more() -> None:
    odd, even = (seconds(softmax(columns, "bfloat16"), toy()) for columns in (1001, 1000))
    assert odd / even == pytest.approx(1.001, rel=1e-3)


# 3 tensors; of a row that is not kept the gradient again, for the sum first
@pytest.mark.parametrize(("columns", "passes"), [(16384, 4), (20000, 4)])
def test_a_log_softmaxs_backward_reads_a_long_gradient_twice(columns: int, passes: int) -> None:
    inputs = [given("grad_output", ROWS, columns), given("output", ROWS, columns)]
    one = call("aten._log_softmax_backward_data", inputs, (ROWS, columns), dim=-1)
    expected = passes * 4 * ROWS * columns / 1e12 + KERNEL_S
    assert seconds(one, toy(l2_cache_bytes=1, multiprocessors=1000)) == pytest.approx(expected)


def test_a_softmaxs_backward_writes_a_product_first() -> None:
    # grad and result read, product written; product and result read, gradient written
    inputs = [given("grad_output", ROWS, 1000), given("output", ROWS, 1000)]
    one = call("aten._softmax_backward_data", inputs, (ROWS, 1000), dim=-1)
    moved = 6 * 4 * ROWS * 1000
    expected = moved / 1e12 + moved / (SINCE_AMPERE.warp * 10) + 2 * KERNEL_S
    assert seconds(one, toy()) == pytest.approx(expected)


def test_a_softmax_along_another_dimension_has_kernels_of_its_own() -> None:
    columns = call("aten._softmax", [given("self", ROWS, 1024)], (ROWS, 1024), dim=0)
    assert seconds(columns, toy()) == pytest.approx(8 * ROWS * 1024 / 0.6e12 + KERNEL_S)


def test_a_layer_norm_reads_rows_again_that_no_cache_holds() -> None:
    # 10 multiprocessors x 2048 / 128 blocks: 160 rows at once
    ampere = toy(compute_capability=(8, 0), l2_cache_bytes=2 * 160 * 4 * 1024)
    rows_s = ROWS / 160 * NORM_ROW_S
    short, long = (seconds(layer_norm(ROWS, columns), ampere) for columns in (1000, 1024))
    assert short == pytest.approx(2 * 4 * ROWS * 1000 / 1e12 + rows_s + KERNEL_S, rel=0.01)
    assert long == pytest.approx(3 * 4 * ROWS * 1024 / 1e12 + rows_s + KERNEL_S, rel=0.01)


def test_one_row_takes_as_long_as_a_row_takes() -> None:
    ampere = toy(compute_capability=(8, 0), l2_cache_bytes=2**30)
    assert seconds(layer_norm(1, 8), ampere) == pytest.approx(NORM_FIRST_S + KERNEL_S, rel=0.01)


def test_a_chip_of_unknown_capability_has_the_estimate_for_all_norms() -> None:
    one = layer_norm(ROWS, 1000)
    moved = 2 * 4 * ROWS * 1000
    assert seconds(one, toy()) == pytest.approx(moved / 0.6e12 + KERNEL_S, rel=0.01)


def norm_backward(rows: int, columns: int, dtype: str = "float32", *, weights: bool = True) -> Call:
    x = (rows, columns)
    inputs = [given("grad_out", *x, dtype=dtype), given("input", *x, dtype=dtype),
              given("mean", rows, 1), given("rstd", rows, 1), given("weight", columns)]  # fmt: skip
    outputs = [spec(*x, dtype=dtype)] + [spec(columns, dtype=dtype)] * (2 * weights)
    return call("aten.native_layer_norm_backward", inputs, *outputs, normalized_shape=(columns,))


def test_weights_are_added_up_by_few_blocks() -> None:
    """Gradients of 2560 rows of 64: two blocks have 256 rows each at a time, ten times."""
    ampere = toy(compute_capability=(8, 0), l2_cache_bytes=2**30, boost_clock_hz=CLOCK_HZ)
    whole, alone = (
        seconds(norm_backward(2560, 64, weights=weights), ampere) for weights in (True, False)
    )
    assert whole - alone == pytest.approx(10 * WEIGHT_ROWS_S + KERNEL_S, rel=0.01)


def test_so_many_rows_are_split_among_blocks() -> None:
    """Then the gradients take what the bytes of two tensors do, at 1 TB/s."""
    rows = SPLIT_ABOVE_ROWS + 256
    ampere = toy(compute_capability=(8, 0), l2_cache_bytes=2**30, boost_clock_hz=CLOCK_HZ)
    whole, alone = (
        seconds(norm_backward(rows, 64, weights=weights), ampere) for weights in (True, False)
    )
    assert whole - alone == pytest.approx(2 * 4 * rows * 64 / 1e12 + KERNEL_S, rel=0.01)


# Both kernels: tests/truth/corpus
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "measured_s"),
    [(256, 768, "float32", 6.03e-6), (1024, 128, "float32", 7.46e-6),
     (4096, 768, "float32", 32.7e-6), (8192, 768, "float32", 75.2e-6),
     (8192, 768, "bfloat16", 50.0e-6), (12608, 768, "float32", 98.3e-6),
     (12608, 1024, "float32", 118.6e-6), (8192, 1600, "float32", 125.6e-6)],
)  # fmt: skip
def test_a_layer_norms_backward_on_an_h100(
    rows: int, columns: int, dtype: str, measured_s: float
) -> None:
    one = norm_backward(rows, columns, dtype)
    expected_s = pytest.approx(measured_s, rel=0.25, abs=2.5e-6)
    assert seconds(one, chip("H100-SXM")) == expected_s


def test_before_ampere_rows_wait_longer() -> None:
    one = softmax(4096)
    volta = replace(toy(), compute_capability=(7, 0))
    assert seconds(one, volta) > 1.5 * seconds(one, toy())


# Profiles of owlv2-large on an H100, PyTorch 2.6: AMD-AGI/TraceLens
def test_eager_attention_over_an_odd_number_of_tokens_takes_what_a_profile_shows() -> None:
    scores = spec(16, 5185, 5185, dtype="bfloat16", argument="self")
    one = call("aten._softmax", [scores], spec(16, 5185, 5185, dtype="bfloat16"), dim=-1)
    assert seconds(one, chip("H100-SXM")) == pytest.approx(2171e-6, rel=0.35)
    norm = layer_norm(5185, 1024, "bfloat16")
    assert seconds(norm, chip("H100-SXM")) == pytest.approx(14.56e-6, rel=0.2)
