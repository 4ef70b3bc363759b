"""Attention: published shares of the peak, causal halves, blocks and waves."""

import pytest
from msgspec import structs

from tests.timing.roofline.chips import kernel_of
from tests.work.calls import call, cost, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.attention import (
    AMPERE,
    AttentionShape,
    Fused,
    Shares,
    padded_head,
    shapes_of,
    shares_of,
)
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call
from torchtally.work.geometry import causal

A100, H100 = chip("A100-SXM"), chip("H100-SXM")


def attention(
    kernel: str, tokens: int, *, heads: int = 108, head: int = 128, causal: bool = False,
    backward: bool = False, dtype: str = "bfloat16",
) -> Call:  # fmt: skip
    inputs = [
        given(name, 1, heads, tokens, head, dtype=dtype) for name in ("query", "key", "value")
    ]
    out = spec(1, heads, tokens, head, dtype=dtype)
    name = f"aten._scaled_dot_product_{kernel}_attention"
    if not backward:
        return call(name, inputs, out, is_causal=causal)
    grad = given("grad_out", 1, heads, tokens, head, dtype=dtype)
    return call(f"{name}_backward", [grad, *inputs], out, out, out, is_causal=causal)


def flop_per_s(one: Call, name: str) -> float:
    return cost(one).flops / kernel_of(one, chip(name)).seconds


def test_long_sequences_reach_the_published_share() -> None:
    # FlashAttention-2 on an A100: 73 % of 312 TFLOP/s forward, 63 % backward
    forward, backward = (attention("flash", 16384, backward=way) for way in (False, True))
    assert flop_per_s(forward, "A100-SXM") == pytest.approx(0.73 * 312e12, rel=0.02)
    assert flop_per_s(backward, "A100-SXM") == pytest.approx(0.63 * 312e12, rel=0.02)


def test_the_same_kernel_reaches_less_of_an_h100() -> None:
    one = attention("flash", 16384, heads=132)
    assert flop_per_s(one, "H100-SXM") == pytest.approx(0.35 * 989.4e12, rel=0.02)


def test_a_causal_flash_kernel_skips_the_masked_half() -> None:
    full = kernel_of(attention("flash", 16384), A100).seconds
    causal = kernel_of(attention("flash", 16384, causal=True), A100).seconds
    around_s = (
        16384 * 108 * 2 * (128 + 128) / 1.7e12
    )  # queries are read and results written in both
    assert (causal - around_s) / (full - around_s) == pytest.approx(0.5, rel=0.02)


def test_queries_are_read_and_results_written_beside_no_product() -> None:
    """cuDNN's on an H100: 0.84 exponentials for each score, products at the promised peak."""
    one = attention("cudnn", 8192, heads=132)
    scores = 132 * 8192 * (8192 + 128)  # each block of queries meets one block more
    seconds = scores * (4 * 128 / 989.4e12 + 0.84 / (16 * 132 * 1.98e9))
    seconds += 132 * 8192 * 2 * (128 + 128) / 2.97e12
    assert kernel_of(one, H100).seconds == pytest.approx(seconds + 5e-6, rel=1e-3)


def test_the_math_path_skips_nothing() -> None:
    full, causal = (
        call(
            "aten._scaled_dot_product_attention_math",
            attention("flash", 1024).inputs,
            spec(1, 108, 1024, 128, dtype="bfloat16"),
            is_causal=way,
        )
        for way in (False, True)
    )
    assert kernel_of(full, A100) == kernel_of(causal, A100)
    assert kernel_of(full, A100).seconds > 2.5 * kernel_of(attention("flash", 1024), A100).seconds


def test_memory_efficient_takes_about_twice_as_long() -> None:
    flash, efficient = (attention(kernel, 8192) for kernel in ("flash", "efficient"))
    ratio = kernel_of(efficient, A100).seconds / kernel_of(flash, A100).seconds
    assert ratio == pytest.approx(2, rel=0.05)


def test_cudnn_is_written_for_hopper() -> None:
    flash, cudnn = (attention(kernel, 8192) for kernel in ("flash", "cudnn"))
    assert kernel_of(flash, H100).seconds / kernel_of(cudnn, H100).seconds > 1.7


def test_one_block_more_than_multiprocessors_takes_a_second_wave() -> None:
    one_wave, two_waves = (attention("flash", 128, heads=heads) for heads in (108, 109))
    first, second = (kernel_of(one, A100) for one in (one_wave, two_waves))
    assert second.seconds > first.seconds


@pytest.mark.parametrize(("size", "padded"), [(8, 32), (64, 64), (72, 96), (80, 96), (256, 256)])
def test_heads_run_as_the_next_larger_kernel(size: int, padded: int) -> None:
    assert padded_head(size) == padded


def test_one_query_against_many_keys_is_bound_by_reading_them() -> None:
    inputs = [
        given("query", 64, 32, 1, 128, dtype="bfloat16"),
        given("key", 64, 32, 8192, 128, dtype="bfloat16"),
        given("value", 64, 32, 8192, 128, dtype="bfloat16"),
    ]
    out = spec(64, 32, 1, 128, dtype="bfloat16")
    one = call("aten._scaled_dot_product_cudnn_attention", inputs, out)
    assert kernel_of(one, H100).seconds >= 2 * 64 * 32 * 8192 * 128 * 2 / 3.35e12


def test_the_shape_behind_a_call() -> None:
    (shape,) = shapes_of(attention("flash", 256, heads=6, head=64, causal=True))
    assert shape == AttentionShape(6, 256, 256, 64, 64, causal(256), False)


def test_a_few_tokens_take_a_few_microseconds() -> None:
    # one block of 128 queries over a block of keys and the filling, on one of 108
    few, block = (kernel_of(attention("flash", n, heads=1), A100) for n in (8, 128))
    moved_s = (128 - 8) * 2 * (128 + 128) / 1.7e12
    assert block.seconds - few.seconds == pytest.approx(moved_s)
    assert KERNEL_S < few.seconds < 20e-6
    assert few.bound is Bound.COMPUTE


def flash(tokens: int, window: int | None = None) -> Call:
    inputs = [
        given(name, 1, tokens, 16, 128, dtype="bfloat16") for name in ("query", "key", "value")
    ]
    literals: dict[str, int | bool] = {"is_causal": True}
    if window is not None:
        literals["window_size_left"] = window - 1
    out = spec(1, tokens, 16, 128, dtype="bfloat16")
    return call("aten._flash_attention_forward", inputs, out, **literals)


def test_a_window_is_as_fast_as_the_blocks_that_it_touches() -> None:
    """Of 256 blocks: 8 in a window, the one on the diagonal, and one before all of them."""
    tokens, window = 32768, 1024
    whole, near = (kernel_of(flash(tokens, reach), A100).seconds for reach in (None, window))
    around_s = tokens * 16 * 2 * (128 + 128) / 1.7e12
    share = (near - around_s) / (whole - around_s)
    assert share == pytest.approx((8 + 1 + 1) / (256 / 2 + 0.5 + 1), rel=0.02)


def test_a_mask_as_a_tensor_is_computed_in_full() -> None:
    one = attention("cudnn", 4096, causal=True)
    bias = given("attn_bias", 1, 108, 4096, 4096, dtype="bfloat16")
    given_mask = call(one.name, [*one.inputs, bias], one.outputs[0])
    plain = attention("cudnn", 4096)
    assert kernel_of(given_mask, H100).seconds == kernel_of(plain, H100).seconds


def test_packed_sequences_take_as_long_as_their_blocks() -> None:
    """One of 8192 tokens and 64 of 128, of known lengths, beside as many as long as the longest."""
    lengths = (8192, *[128] * 64)
    total = sum(lengths)
    inputs = [given(name, total, 16, 128, dtype="bfloat16") for name in ("query", "key", "value")]
    offsets = given("cum_seq_q", len(lengths) + 1, dtype="int32")
    out = spec(total, 16, 128, dtype="bfloat16")

    def seconds(**literals: tuple[int, ...]) -> float:
        one = call(
            "aten._flash_attention_forward", [*inputs, offsets], out, max_q=8192, max_k=8192,
            **literals,
        )  # fmt: skip
        return kernel_of(one, A100).seconds

    # rows of 64 + 1 blocks of keys for 64 blocks of queries, and 1 + 1 for 64; else 64 + 1 for all
    ratio = (64 * 65 + 64 * 2) / (128 * 65)
    known = seconds(lengths_q=lengths, lengths_k=lengths)
    assert known / seconds() == pytest.approx(ratio, rel=0.02)


def test_a_halved_rate_gives_attention_twice_the_share() -> None:
    """Published: 172.8 TFLOP/s of an RTX 4090's 165.2, and 0.65 to 0.78 of that without flash."""
    ada = chip("RTX-4090")
    assert shares_of(Fused.FLASH, "float16", ada) == Shares(1.0, 1.0)
    assert shares_of(Fused.EFFICIENT, "float16", ada) == Shares(0.73, 0.63)
    assert shares_of(Fused.FLASH, "float16", chip("RTX-A6000")) == AMPERE


# Profiles of ViT-base and BERT-small on an H100, PyTorch 2.6: AMD-AGI/TraceLens
@pytest.mark.parametrize(("heads", "tokens", "published_s"), [(48, 197, 10.2e-6), (8, 141, 9.1e-6)])
def test_few_tokens_wait_for_the_first_block(heads: int, tokens: int, published_s: float) -> None:
    one = attention("flash", tokens, heads=heads, head=64)
    assert kernel_of(one, H100).seconds == pytest.approx(published_s, rel=0.1)


# GPT-2's attention of 64 x 1024 tokens on an H100, PyTorch 2.11: 1184 us in the kernel that
# multiplies, 143 before and 116 after; by cuDNN 698, 145 and 113
@pytest.mark.parametrize(("kernel", "measured_s"), [("flash", 1443e-6), ("cudnn", 955e-6)])
def test_what_comes_before_and_after_a_backward_takes_its_time(
    kernel: str, measured_s: float
) -> None:
    one = attention(kernel, 1024, heads=64 * 6, causal=True, backward=True)
    assert kernel_of(one, H100).seconds == pytest.approx(measured_s, rel=0.08)


def heads_of_64(batch: int, heads: int, tokens: int, *, backward: bool) -> Call:
    """Causal, by cuDNN, in bfloat16."""
    shape = (batch, heads, tokens, 64)
    inputs = [given(name, *shape, dtype="bfloat16") for name in ("query", "key", "value")]
    out = spec(*shape, dtype="bfloat16")
    name = "aten._scaled_dot_product_cudnn_attention"
    if not backward:
        return call(name, inputs, out, is_causal=True)
    grad = given("grad_out", *shape, dtype="bfloat16")
    return call(f"{name}_backward", [grad, *inputs], out, out, out, is_causal=True)


# tests/truth/corpus: GPT-2, and BERT and ViT, which had no part in any constant
@pytest.mark.parametrize(
    ("batch", "tokens", "is_causal", "backward", "measured_s"),
    [
        (8, 1024, True, False, 105e-6),
        (8, 1024, True, True, 186e-6),
        (16, 512, False, False, 105e-6),
        (16, 512, False, True, 203e-6),
        (64, 197, False, False, 92e-6),
        (64, 197, False, True, 198e-6),
    ],
)
def test_drawing_what_to_drop_takes_time(
    batch: int, tokens: int, is_causal: bool, backward: bool, measured_s: float
) -> None:
    plain = heads_of_64(batch, 12, tokens, backward=backward)
    literals = (("is_causal", is_causal), ("drops", True))
    dropping = structs.replace(plain, literals=literals)
    assert kernel_of(dropping, H100).seconds == pytest.approx(measured_s, rel=0.4)


# tests/truth/corpus: GPT-2, and the others, which had no part in any constant
@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "backward", "measured_s"),
    [
        (8, 12, 1024, False, 47e-6),
        (8, 12, 1024, True, 155e-6),
        (8, 25, 1024, False, 89e-6),
        (8, 25, 1024, True, 316e-6),
        (4, 32, 2048, False, 184e-6),
        (4, 32, 2048, True, 621e-6),
    ],
)
def test_small_heads_wait_for_exponentials(
    batch: int, heads: int, tokens: int, backward: bool, measured_s: float
) -> None:
    one = heads_of_64(batch, heads, tokens, backward=backward)
    assert kernel_of(one, H100).seconds == pytest.approx(measured_s, rel=0.2)
