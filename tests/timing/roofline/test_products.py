"""Products: tiles, waves, splits of K, alignment, and published times of large ones."""

import dataclasses

import pytest
from msgspec.structs import replace

from tests.timing.roofline.chips import bmm, kernel_of, mm, toy
from tests.work.calls import call, cost, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import BIAS_S, KERNEL_S, LOAD_S, STAGES, UNALIGNED_SHARE
from torchtally.timing.roofline.kernel import Bound
from torchtally.timing.roofline.products import (
    Product,
    epilogue_s,
    launch_s,
    product_s,
    products_of,
    splits_of,
    stages_of,
    tile_shares,
    tiled_s,
    with_bias_s,
)
from torchtally.timing.roofline.rates import limited_byte_s
from torchtally.trace import Call, TensorSpec

STEP_S = 2 * 128 * 128 * 32 * 10 / 1e12
"""On the toy: a step of 32 terms of a 128 x 128 tile, on one of ten multiprocessors: 10.5 us."""


def test_one_wave_by_hand() -> None:
    # ten tiles of 128 x 128, one for each multiprocessor: 64 terms are 2 steps, and 4 to fill
    product = Product(10, 128, 128, 64, "float16", 2)
    assert tiled_s(product, (128, 128), 1, 1e12, toy()) == pytest.approx((2 + STAGES) * STEP_S)


def test_one_tile_more_takes_a_wave_more() -> None:
    product = Product(11, 128, 128, 64, "float16", 2)
    assert tiled_s(product, (128, 128), 1, 1e12, toy()) == pytest.approx((4 + STAGES) * STEP_S)


def test_a_part_of_a_tile_costs_a_whole_one() -> None:
    part, whole = (Product(1, size, 128, 64, "float16", 2) for size in (65, 128))
    assert tiled_s(part, (128, 128), 1, 1e12, toy()) == tiled_s(whole, (128, 128), 1, 1e12, toy())


def test_splitting_k_fills_idle_multiprocessors() -> None:
    product = Product(1, 128, 128, 8 * 32 * 100, "float16", 2)
    alone = tiled_s(product, (128, 128), 1, 1e12, toy())
    split = tiled_s(product, (128, 128), 8, 1e12, toy())
    assert alone == pytest.approx((800 + STAGES) * STEP_S)
    assert split == pytest.approx((100 + STAGES) * STEP_S)
    seconds, launched = product_s(product, toy())
    assert seconds <= split * 1.02
    assert launched == 2


def test_a_pipeline_is_as_long_as_shared_memory_has_room() -> None:
    """208 KiB hold 13 steps of 64 terms for 64 x 64 on an H100, and 4 for 256 x 128."""
    product = Product(1, 64, 64, 4096, "bfloat16", 2)
    assert stages_of(product, (64, 64), chip("H100-SXM")) == 2 * 13
    assert stages_of(product, (256, 128), chip("H100-SXM")) // 2 == 4
    assert stages_of(product, (64, 64), chip("A100-SXM")) == STAGES
    off_16_bytes = dataclasses.replace(product, row_alignment_bytes=2)
    assert stages_of(off_16_bytes, (64, 64), chip("H100-SXM")) == STAGES


def test_two_multiprocessors_of_blackwell_share_an_operand() -> None:
    """A step of 128 x 128 takes in 192 rows of 64 bytes there, and 256 elsewhere, at 64 a clock."""
    product = Product(1, 128, 128, 32, "bfloat16", 2)
    for name, rows, clock_hz in (("B200", 192, 1.965e9), ("H100-SXM", 256, 1.98e9)):
        seconds = tiled_s(product, (128, 128), 1, 1e18, chip(name))
        assert seconds == pytest.approx(rows / clock_hz + LOAD_S)


def test_kernels_of_products_take_the_time_of_their_dies() -> None:
    product = Product(1, 16, 16, 16, "bfloat16", 2)
    assert launch_s(product, chip("B200")) < launch_s(product, chip("H100-SXM")) < 2e-6
    assert launch_s(product, chip("A100-SXM")) > 2e-6
    assert launch_s(Product(1, 16, 16, 16, "float32", 4), chip("A100-SXM")) == KERNEL_S
    assert launch_s(product, chip("V100-SXM-16GB")) == KERNEL_S


def test_small_tiles_wait_for_the_l2_cache() -> None:
    # 64 x 64 by 32 terms: 8192 bytes at 64 per clock take 128 clocks, at 1 MHz 128 us
    slow = toy(boost_clock_hz=1e6)
    product = Product(1, 64, 64, 32, "float16", 2)
    assert tiled_s(product, (64, 64), 1, 1e12, slow) == pytest.approx((1 + STAGES) * 128e-6)


def test_the_cliff_between_one_wave_and_one_tile_more_on_an_h100() -> None:
    # 132 multiprocessors, tiles of 256 x 128: 12 x 11 of them, then 12 x 12
    full = kernel_of(mm(12 * 256, 8192, 11 * 128, "bfloat16"), chip("H100-SXM")).seconds
    over = kernel_of(mm(12 * 256, 8192, 11 * 128 + 8, "bfloat16"), chip("H100-SXM")).seconds
    assert over / full > 1.1


@pytest.mark.parametrize(
    ("name", "size", "published_s"),
    [
        ("H100-SXM", 8192, 2 * 8192**3 / 797.51e12),  # zzc0721/torch-performance-test-data 79
        ("H100-SXM", 4096, 2 * 4096**3 / 788.72e12),
        ("A100-PCIe-40GB", 8192, 2 * 8192**3 / 215.26e12),  # the same, issue 108
    ],
)
def test_large_products_take_what_was_published(name: str, size: int, published_s: float) -> None:
    kernel = kernel_of(mm(size, size, size, "bfloat16"), chip(name))
    assert kernel.seconds == pytest.approx(published_s, rel=0.08)
    assert kernel.bound is Bound.COMPUTE


def test_one_row_is_bound_by_reading_the_matrix() -> None:
    kernel = kernel_of(mm(1, 8192, 8192, "bfloat16"), chip("H100-SXM"))
    assert kernel.bound is Bound.MEMORY
    assert kernel.seconds > 2 * 8192 * 8192 / 3.35e12


def linear(rows: int, K: int, N: int) -> Call:
    shapes = {"self": (N,), "mat1": (rows, K), "mat2": (K, N)}
    inputs = [given(name, *shape, dtype="bfloat16") for name, shape in shapes.items()]
    return call("aten.addmm", inputs, spec(rows, N, dtype="bfloat16"))


def test_a_tiny_product_is_bound_by_its_launch() -> None:
    kernel = kernel_of(mm(8, 8, 8, "bfloat16"), chip("H100-SXM"))
    assert kernel.bound is Bound.OVERHEAD
    assert KERNEL_S <= kernel.seconds < 2 * KERNEL_S


def test_float32_uses_tensor_cores_only_when_allowed() -> None:
    plain = kernel_of(mm(4096, 4096, 4096, "float32"), chip("H100-SXM")).seconds
    allowed = mm(4096, 4096, 4096, "float32", allow_tf32=True)
    assert plain / kernel_of(allowed, chip("H100-SXM")).seconds > 5


def test_unaligned_rows_run_at_half_the_rate() -> None:
    # GPT-2's vocabulary, 50257 and padded; so many terms that writing the result counts little
    odd = kernel_of(mm(8192, 8192, 50257, "bfloat16"), chip("A100-SXM")).seconds
    padded = kernel_of(mm(8192, 8192, 50304, "bfloat16"), chip("A100-SXM")).seconds
    assert odd / padded == pytest.approx(1 / UNALIGNED_SHARE, rel=0.1)


# Profiles of owlv2-large and bert-small on an H100, PyTorch 2.6: AMD-AGI/TraceLens
@pytest.mark.parametrize(
    ("one", "published_s"),
    [
        (bmm(16, 5185, 64, 5185, "bfloat16"), 1083e-6),  # the result's rows on 2 bytes
        (bmm(16, 5185, 5185, 64, "bfloat16"), 827e-6),  # the first operand's
        (mm(141, 512, 30522, "bfloat16"), 41.3e-6),  # the result's on 4
    ],
)
def test_rows_off_16_bytes_leave_hopper_little(one: Call, published_s: float) -> None:
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(published_s, rel=0.3)


# tests/truth/corpus, PyTorch 2.11 on an H100. One of GPT-2's three is 0.79 of the measured time: it
# has a smaller tile than the fastest.
@pytest.mark.parametrize(
    ("one", "measured_s", "rel"),
    [
        (mm(8192, 768, 50257, "bfloat16"), 6637e-6, 0.22),
        (mm(8192, 50257, 768, "bfloat16"), 4514e-6, 0.12),
        (mm(8192, 50257, 1600, "bfloat16"), 10694e-6, 0.12),
        (mm(8192, 768, 30522, "float16"), 1616e-6, 0.12),
        (mm(8192, 30522, 768, "float16"), 1591e-6, 0.15),
    ],
)
def test_rows_off_16_bytes_are_loaded_in_pieces(one: Call, measured_s: float, rel: float) -> None:
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(measured_s, rel=rel)


def test_hopper_cuts_a_product_so_that_its_last_wave_is_full() -> None:
    # 144 tiles of 128 x 128 would be two waves on 132 multiprocessors: 84 us
    one = mm(768, 8192, 3072, "bfloat16")
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(54.9e-6, rel=0.1)


@pytest.mark.parametrize(
    ("one", "published_s"),
    [
        (linear(788, 768, 768), 8.3e-6),
        (linear(5, 768, 768), 6.6e-6),
        (linear(8192, 768, 768), 18.0e-6),  # this one by cuBLAS 13.0: tests/truth/corpus
        (linear(5185, 4096, 1024), 65.6e-6),
        (linear(5184, 1024, 1), 7.8e-6),  # one column, on 2 bytes
    ],
)
def test_linear_layers_take_the_time_of_their_bias_on_hopper(one: Call, published_s: float) -> None:
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(published_s, rel=0.14)
    assert with_bias_s(one, chip("H100-SXM")) == BIAS_S
    assert with_bias_s(one, chip("A100-SXM")) == 0
    assert with_bias_s(mm(8, 8, 8), chip("H100-SXM")) == 0


def test_geforces_halved_rate_waits_for_no_rows() -> None:
    odd, padded = (mm(8192, 768, columns, "float16") for columns in (2730, 2816))
    assert kernel_of(odd, chip("RTX-3090")).seconds <= kernel_of(padded, chip("RTX-3090")).seconds
    assert kernel_of(odd, chip("A100-SXM")).seconds > kernel_of(padded, chip("A100-SXM")).seconds


def test_rows_begin_on_the_largest_power_of_two_of_all() -> None:
    def bytes_of(M: int, K: int, N: int) -> int:
        one = mm(M, K, N)
        return products_of(one, cost(one))[0].row_alignment_bytes

    assert [bytes_of(64, 64, N) for N in (64, 8, 4, 2, 50257)] == [16, 16, 8, 4, 2]
    assert bytes_of(64, 1705, 512) == 2
    assert bytes_of(1, 8192, 8192) == 16
    assert bytes_of(8192, 8192, 1) == bytes_of(1, 64, 8) == 16


def test_rows_that_are_summed_along_end_on_it_too() -> None:
    """Gradients of 65,536 x 50,257 logits on an H100, rows 50,304 apart (PyTorch 2.11)."""
    tokens, vocabulary, width = 65536, 50257, 768
    logits = given("self", tokens, vocabulary, dtype="bfloat16")
    apart = replace(logits, stride=(50304, 1))
    turned = replace(logits, shape=(vocabulary, tokens), stride=(1, 50304))
    table, hidden = (given("mat2", rows, width, dtype="bfloat16") for rows in (vocabulary, tokens))
    of_hidden = call("aten.mm", [apart, table], spec(tokens, width, dtype="bfloat16"))
    of_table = call("aten.mm", [turned, hidden], spec(vocabulary, width, dtype="bfloat16"))
    assert kernel_of(of_hidden, chip("H100-SXM")).seconds == pytest.approx(38.9e-3, rel=0.05)
    assert products_of(of_table, cost(of_table))[0].row_alignment_bytes == 16


def test_a_chip_without_multiprocessors_has_no_waves() -> None:
    found_s, launched = product_s(Product(1, 1, 1, 10**6, "float16", 2), toy(multiprocessors=None))
    assert (found_s, launched) == (2e6 / 1e12, 1)


def test_a_linear_layer_over_a_batch_is_one_matrix() -> None:
    inputs = [given("input", 4, 64, 32), given("weight", 48, 32)]
    one = call("aten.linear", inputs, (4, 64, 48))
    assert products_of(one, cost(one)) == (Product(1, 256, 48, 32, "float32", 4),)


def test_a_batch_of_pairs_stays_a_batch() -> None:
    one = bmm(6, 16, 32, 24)
    assert products_of(one, cost(one)) == (Product(6, 16, 24, 32, "float16", 2),)


def test_the_added_matrix_is_not_an_operand() -> None:
    inputs = [given("self", 8), given("mat1", 16, 32), given("mat2", 32, 8)]
    one = call("aten.addmm", inputs, spec(16, 8))
    assert products_of(one, cost(one)) == (Product(1, 16, 8, 32, "float32", 4),)


def test_no_terms_take_no_arithmetic() -> None:
    assert product_s(Product(1, 8, 8, 0, "float16", 2), toy())[0] == 0.0


def test_batched_float32_has_one_tile_on_ampere_and_ada() -> None:
    # 64 rows fill half a tile of 128: as long as 128 rows, but for the power that bytes take
    half, whole = (bmm(96, rows, 4096, 4096, "float32") for rows in (64, 128))
    assert kernel_of(half, chip("A100-SXM")).seconds == kernel_of(whole, chip("A100-SXM")).seconds
    more_bytes = 96 * 2 * 64 * 4096 * 4
    assert kernel_of(whole, chip("L4")).seconds - kernel_of(half, chip("L4")).seconds == (
        pytest.approx(more_bytes * limited_byte_s("float32", chip("L4")))
    )
    assert kernel_of(half, chip("H100-SXM")).seconds < kernel_of(whole, chip("H100-SXM")).seconds


def test_each_tile_of_a_float32_product_begins_and_ends_by_itself() -> None:
    """By hand, of (512, 1024, K) @ (512, K, 1024): 32,768 tiles are 304 waves on 108
    multiprocessors, each of half a microsecond, K / 16 steps, and 64 KiB at 22 bytes of 1.33 GHz.
    """
    A100 = chip("A100-PCIe")
    rate = 0.94 * 19.5e12
    step_s = 2 * 128 * 128 * 16 * 108 / rate
    ends_s = 0.5e-6 + 4 * 128 * 128 / (22 * rate / (2 * 64 * 108))
    for K in (64, 128):
        seconds, launches = product_s(Product(512, 1024, 1024, K, "float32", 4), A100)
        assert seconds == pytest.approx(304 * (K // 16 * step_s + ends_s))
        assert launches == 1
    assert tiled_s(Product(1, 128, 128, 64, "float32", 4), (128, 128), 1, rate, A100) > ends_s


@pytest.mark.parametrize(("name", "share"), [("A100-PCIe", 0.96), ("V100-PCIe-32GB", 1.0)])
def test_linear_layers_sum_along_both_operands_rows(name: str, share: float) -> None:
    """A weight is (N, K) in memory: since Ampere that takes longer in float32."""
    plain = mm(8192, 8192, 8192, "float32")
    left, right = plain.inputs
    linear = replace(plain, inputs=(left, replace(right, stride=(1, 8192))))
    times = [kernel_of(call, chip(name)).seconds for call in (plain, linear)]
    assert times[0] / times[1] == pytest.approx(share, rel=0.01)
    halves = [replace(call, inputs=tuple(map(in_half, call.inputs))) for call in (plain, linear)]
    assert len({kernel_of(call, chip(name)).seconds for call in halves}) == 1


def in_half(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float16")


def test_a_small_float32_tile_reaches_less() -> None:
    """A tile of 32 x 32 takes 1/16 of the steps' FLOPs at 0.76 of the rate."""
    A100 = chip("A100-PCIe")
    product = Product(1, 128 * 108, 128, 65536, "float32", 4)
    shares = tile_shares(product, A100)
    small, large = (
        tiled_s(product, tile, 1, shares[tile] * 17e12, A100) for tile in ((32, 32), (128, 128))
    )
    assert (128, 128) in shares
    assert (64, 64) not in shares
    assert small / large == pytest.approx(1 / 0.76, rel=0.02)


def test_ampere_splits_k_in_float32_only_where_tiles_are_few() -> None:
    few = Product(1, 32 * 108, 32 * 2, 4096, "float32", 4)
    more = Product(1, 32 * 108, 32 * 3, 4096, "float32", 4)
    assert max(splits_of(few, chip("A100-PCIe"))) > 1
    assert splits_of(more, chip("A100-PCIe")) == (1,)
    assert max(splits_of(more, chip("V100-PCIe-32GB"))) > 1


@pytest.mark.parametrize(
    ("M", "K", "published_us"), [(1760, 1760, 31), (2048, 2048, 31), (3072, 1024, 24)]
)
def test_few_columns_wait_for_each_step_before_ampere(M: int, K: int, published_us: float) -> None:
    """(M, K) @ (K, 128) in float16 on a V100 (baidu-research/DeepBench, DeepBench_NV_V100.xlsx)."""
    kernel = kernel_of(mm(M, K, 128), chip("V100-SXM-16GB"))
    assert 1e6 * kernel.seconds == pytest.approx(published_us, rel=0.25)


@pytest.mark.parametrize(
    ("M", "K", "N", "published_ms"),
    [(3072, 1024, 48000, 3.168), (4608, 1536, 48000, 6.811), (7680, 2560, 24000, 9.009),
     (4096, 4096, 7000, 2.092), (1024, 2048, 48000, 1.881)],
)  # fmt: skip
def test_results_are_written_after_the_arithmetic_before_hopper(
    M: int, K: int, N: int, published_ms: float
) -> None:
    """In float16 on a V100 (baidu-research/DeepBench, DeepBench_NV_V100.xlsx)."""
    kernel = kernel_of(mm(M, K, N), chip("V100-SXM-16GB"))
    assert 1e3 * kernel.seconds == pytest.approx(published_ms, rel=0.08)


def test_halved_rates_write_their_results_beside_the_arithmetic_and_hopper_half() -> None:
    product = Product(1, 8192, 8192, 1024, "bfloat16", 2)
    half_s = 0.5 * 8192 * 8192 * 2 / 2.97e12
    assert epilogue_s(product, chip("H100-SXM")) == pytest.approx(half_s)
    in_8_bits = Product(1, 8192, 8192, 1024, "float8_e4m3fn", 1)
    assert epilogue_s(in_8_bits, chip("H100-SXM")) == pytest.approx(half_s)
    assert epilogue_s(product, chip("RTX-3090")) == 0.0
    assert epilogue_s(product, chip("RTX-A6000")) > 0.0
    assert epilogue_s(product, chip("A100-SXM")) > 0.0
    assert epilogue_s(Product(1, 8192, 8192, 1024, "float32", 4), chip("A100-SXM")) == 0.0
