"""Kernels that go by bytes: sums one can do by hand on a chip of 1 TB/s."""

from dataclasses import replace
from math import sqrt

import pytest
from msgspec import structs

from tests.timing.roofline.chips import add, kernel_of, toy
from tests.work.calls import call, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import KERNEL_S, LOSS_S, REDUCTION_S, WEIGHT_ROWS_S
from torchtally.timing.roofline.kernel import Bound
from torchtally.timing.roofline.lists import OF_4_KB
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call


def test_a_million_elements_added() -> None:
    # 12 MB at 1 TB/s: 12 us, and the kernel's own
    kernel = kernel_of(add(10**6), toy())
    assert kernel.seconds == pytest.approx(12e-6 + KERNEL_S)
    assert kernel.bound is Bound.MEMORY


@pytest.mark.parametrize(("cache_mb", "seconds"), [(24, 6e-6), (8, 12e-6), (48 / 3.5, 9e-6)])
def test_what_fits_in_the_l2_cache_goes_at_twice_the_rate(cache_mb: float, seconds: float) -> None:
    """12 MB: all of it in a cache of twice that, none in a smaller one; half, between half of the
    cache and 1.25 times it, takes 6 us of 12 there, and 3 here.
    """
    cached = replace(toy(), l2_cache_bytes=round(cache_mb * 1e6))
    assert kernel_of(add(10**6), cached).seconds == pytest.approx(seconds + KERNEL_S)


def test_what_finds_each_element_gains_nothing_by_the_cache() -> None:
    """A row that is added to all of a thousand."""
    cached = replace(toy(), l2_cache_bytes=10**9)
    row = given("other", 1000)
    one = call("aten.add", [given("self", 1000, 1000), row], spec(1000, 1000))
    assert kernel_of(one, cached).seconds == kernel_of(one, toy()).seconds


def test_a_norm_gains_nothing_by_the_cache() -> None:
    cached = replace(toy(), l2_cache_bytes=10**9)
    norm = norm_backward(1000, 1000)
    assert kernel_of(norm, cached).seconds == kernel_of(norm, toy()).seconds


def test_few_elements_are_bound_by_the_launch() -> None:
    kernel = kernel_of(add(10), toy())
    assert kernel.bound is Bound.OVERHEAD
    assert kernel.seconds == pytest.approx(KERNEL_S, rel=1e-3)


def test_nothing_to_do_takes_nothing() -> None:
    assert kernel_of(add(0), toy()).seconds == 0.0


def norm_backward(rows: int, columns: int) -> Call:
    inputs = [
        given("grad_out", rows, columns),
        given("input", rows, columns),
        given("mean", rows, 1),
        given("rstd", rows, 1),
        given("weight", columns),
    ]
    outputs = spec(rows, columns), spec(columns), spec(columns)
    return call("aten.native_layer_norm_backward", inputs, *outputs)


def test_layer_norm_backward_reads_twice() -> None:
    # 2 tensors read and 1 written: 12 MB at a norm's 0.6 TB/s; 1000 rows for the weights' gradients
    kernel = kernel_of(norm_backward(1000, 1000), toy())
    weights_s = max(8e6 / 1e12, 4 * WEIGHT_ROWS_S * 32 / 20)  # of 32 blocks, 2 x 10 at once
    assert kernel.seconds == pytest.approx(12e6 / 0.6e12 + weights_s + 2 * KERNEL_S, rel=0.01)


def test_an_inference_batch_norm_reads_once() -> None:
    inputs = [given("input", 8, 64, 32, 32), given("weight", 64)]
    training, inference = (
        kernel_of(call("aten.native_batch_norm", inputs, (8, 64, 32, 32), training=flag), toy())
        for flag in (True, False)
    )
    assert training.seconds > inference.seconds


def test_float64_is_bound_by_arithmetic_on_a_graphics_chip() -> None:
    inputs = [given("self", 10**7, dtype="float64")]
    one = call("aten.exp", inputs, spec(10**7, dtype="float64"))
    assert kernel_of(one, chip("RTX-4090")).bound is Bound.COMPUTE
    assert kernel_of(one, chip("A100-SXM")).bound is Bound.MEMORY


def test_sorting_passes_over_keys_and_places_for_every_byte() -> None:
    # int32 keys: read for the histogram; 4 passes over 4 + 8 bytes, each read and written
    n = 10**6
    outputs = spec(n, dtype="int32"), spec(n, dtype="int64")
    one = call("aten.sort", [given("self", n, dtype="int32")], *outputs)
    moved = (4 + 4 + 8) * n + 4 * n + 2 * 4 * (4 + 8) * n
    assert kernel_of(one, toy()).seconds == pytest.approx(moved / 1e12 + 7 * KERNEL_S)


def test_a_factorisation_goes_panel_by_panel() -> None:
    small, large = (
        kernel_of(call("aten.linalg_cholesky_ex", [given("self", n, n)], (n, n)), toy()).seconds
        for n in (32, 320)
    )
    assert large - small > 9 * KERNEL_S


def test_a_fused_optimizer_moves_its_bytes() -> None:
    n = 10**6
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs")
    one = call("aten._fused_adamw_", [given(name, n, written=True) for name in names])
    # all four read, all but the gradient written, in 16 blocks on 10 multiprocessors: 2 on some
    expected_s = sqrt(2 / 1.6) * 7 * 4e6 / 1e12 + KERNEL_S
    assert kernel_of(one, toy()).seconds == pytest.approx(expected_s, rel=1e-3)


def test_a_gradient_that_is_multiplied_by_itself_is_read_once() -> None:
    """Three tensors of a million floats move, or four."""
    n = 10**6
    names = ("self", "tensor1", "tensor2")
    mixed = call(
        "aten._foreach_addcmul_", [given(each, n, written=each == "self") for each in names]
    )
    first, second, third = mixed.inputs
    squared = structs.replace(
        mixed, inputs=(first, second, structs.replace(third, storage=second.storage))
    )
    factor = sqrt(2 / 1.6)
    for one, moved in ((squared, 3), (mixed, 4)):
        expected_s = factor * moved * 4e6 / 1e12 + KERNEL_S
        assert kernel_of(one, toy()).seconds == pytest.approx(expected_s, rel=1e-3)


# PyTorch 2.11, launches of 320 blocks: 7 of AdamW's 124 M parameters, and 18 of 355 M
@pytest.mark.parametrize(
    ("name", "lists", "parameters", "measured_s"),
    [("_fused_adamw_", 4, 124_439_808, 1320e-6), ("_foreach_mul_", 1, 124_439_808, 376e-6),
     ("_foreach_sqrt", 1, 124_439_808, 381e-6), ("_foreach_lerp_", 2, 354_823_168, 1554e-6)],
)  # fmt: skip
def test_lists_on_an_h100(
    name: str, lists: int, parameters: int, measured_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtally.timing.roofline.lists.LIST_LIMITS", OF_4_KB)
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs")[:lists]
    written = () if not name.endswith("_") else names if lists == 4 else names[:1]
    inputs = [given(each, parameters, written=each in written) for each in names]
    outputs = () if name.endswith("_") else (spec(parameters),)
    kernel = kernel_of(call(f"aten.{name}", inputs, *outputs), chip("H100-SXM"))
    assert kernel.seconds == pytest.approx(measured_s, rel=0.05)


# tests/truth/corpus, without filling the result with zeros (50257 rows: 51 and 207 us)
@pytest.mark.parametrize(
    ("indices", "columns", "rows", "measured_s"),
    [(256, 768, 256, 8.2e-6), (1024, 768, 1024, 28.0e-6), (8192, 768, 50257, 204.5e-6),
     (8192, 1600, 50257, 305e-6)],
)  # fmt: skip
def test_an_embeddings_gradient_on_an_h100(
    indices: int, columns: int, rows: int, measured_s: float
) -> None:
    inputs = [given("grad_output", indices, columns), given("indices", indices, dtype="int64")]
    one = call("aten.embedding_dense_backward", inputs, spec(rows, columns))
    zeros_s = 4 * rows * columns / bandwidth_bytes_per_s(chip("H100-SXM"))
    kernel = kernel_of(one, chip("H100-SXM"))
    assert kernel.seconds - zeros_s == pytest.approx(measured_s, rel=0.35)


@pytest.mark.parametrize(
    ("rows", "dtype", "measured_s"), [(16384, "bfloat16", 109e-6), (8192, "float32", 49.1e-6)]
)
def test_rows_added_by_an_index_on_an_h100(rows: int, dtype: str, measured_s: float) -> None:
    into = given("self", rows + 4097, 768, dtype=dtype, written=True)
    index = given("index", rows, dtype="int64")
    one = call("aten.index_add_", [into, index, given("source", rows, 768, dtype=dtype)], dim=0)
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(measured_s, rel=0.35)


@pytest.mark.parametrize(
    ("rows", "measured_s"), [(256, 9.7e-6), (1024, 10.8e-6), (4096, 18.7e-6), (8192, 19.3e-6)]
)
def test_a_loss_of_rows_is_summed_up_by_one_block(rows: int, measured_s: float) -> None:
    inputs = [given("self", rows, 50257), given("target", rows, dtype="int64")]
    one = call("aten.nll_loss_forward", inputs, (), (), reduction=1, ignore_index=-100)
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(measured_s, rel=0.25)


def test_a_loss_without_classes_takes_no_row() -> None:
    inputs = [given("self", 4, 0), given("target", 4, dtype="int64")]
    one = call("aten.nll_loss_forward", inputs, (), (), reduction=1)
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(LOSS_S + KERNEL_S, rel=0.01)


def test_a_sum_takes_the_time_to_hand_its_parts_on() -> None:
    one = call("aten.sum", [given("self", 8)], (), dim=(0,))
    assert kernel_of(one, toy()).seconds == pytest.approx(KERNEL_S + REDUCTION_S, rel=1e-3)


def test_a_binary_cross_entropy_is_five_kernels() -> None:
    """Input and target are read and 9 times as much again, of a million floats."""
    inputs = [given(name, 1000, 1000) for name in ("self", "target")]
    one = call("aten.binary_cross_entropy_with_logits", inputs, (), reduction=1)
    expected_s = 11 * 4e6 / 1e12 + 5 * KERNEL_S
    assert kernel_of(one, toy()).seconds == pytest.approx(expected_s, rel=1e-3)


def test_a_batch_norm_by_running_statistics_streams() -> None:
    """It reads and writes its input once, as a copy does."""
    inputs = (given("input", 64, 64, 56, 56, dtype="float16"),)
    ada = chip("RTX-4090")

    def seconds(*, training: bool) -> float:
        norm = call("aten.cudnn_batch_norm", inputs, (64, 64, 56, 56), training=training)
        return kernel_of(norm, ada).seconds

    copy_s = kernel_of(call("aten.clone", inputs, (64, 64, 56, 56)), ada).seconds
    assert seconds(training=False) == pytest.approx(copy_s, rel=0.05)
    assert seconds(training=True) > 1.5 * copy_s


def column_sum(rows: int, columns: int, dtype: str = "bfloat16") -> Call:
    total = spec(1, columns, dtype=dtype)
    return call("aten.sum", [given("self", rows, columns, dtype=dtype)], total, dim=(0,))


# tests/truth/corpus. The last four had no part in the fit.
@pytest.mark.parametrize(
    ("rows", "columns", "measured_s"),
    [(256, 1024, 6.7e-6), (8192, 768, 17.9e-6), (8192, 3072, 33.4e-6), (8192, 6400, 52.2e-6),
     (12608, 3072, 44.6e-6), (12608, 768, 24.0e-6), (16384, 6400, 86.2e-6)],
)  # fmt: skip
def test_sums_of_columns_on_an_h100(rows: int, columns: int, measured_s: float) -> None:
    dtype = "float32" if rows == 256 else "bfloat16"
    kernel = kernel_of(column_sum(rows, columns, dtype), chip("H100-SXM"))
    assert kernel.seconds == pytest.approx(measured_s, rel=0.2, abs=4e-6)


# Adafactor's, tests/truth/corpus; they had no part in the fit
@pytest.mark.parametrize(
    ("rows", "columns", "measured_s"),
    [(1024, 1024, 9.99e-6), (512, 2048, 11.3e-6), (3072, 1024, 12.4e-6), (2048, 8192, 31.7e-6),
     (8192, 2048, 35.4e-6), (32000, 2048, 103.4e-6)],
)  # fmt: skip
def test_norms_of_columns_on_an_h100(rows: int, columns: int, measured_s: float) -> None:
    inputs = [given("self", rows, columns)]
    one = call("aten.linalg_vector_norm", inputs, spec(1, columns), dim=(0,))
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(measured_s, rel=0.35)


def test_a_scan_along_rows_takes_one_after_the_other() -> None:
    def cumsum(dim: int) -> float:
        inputs = [given("self", 16384, 8, dtype="int64")]
        one = call("aten.cumsum", inputs, spec(16384, 8, dtype="int64"), dim=dim)
        return kernel_of(one, chip("H100-SXM")).seconds

    assert cumsum(0) == pytest.approx(2995e-6, rel=0.01)  # tests/truth/corpus
    assert cumsum(-2) == cumsum(0)
    assert cumsum(1) == cumsum(-1) < 10e-6
