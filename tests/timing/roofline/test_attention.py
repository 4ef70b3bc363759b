"""Attention: published shares of the peak, causal halves, blocks and waves."""

import pytest

from tests.timing.roofline.chips import kernel_of
from tests.work.calls import call, cost, given, spec
from torchtally.chips import chip
from torchtally.timing.roofline.attention import (
    AttentionShape,
    attention_of,
    computed_share,
    padded_head,
)
from torchtally.timing.roofline.kernel import Bound
from torchtally.timing.roofline.limits import KERNEL_S
from torchtally.trace import Call

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
    assert causal / full == pytest.approx(0.5, rel=0.02)


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
    assert kernel_of(full, A100).seconds > 3 * kernel_of(attention("flash", 1024), A100).seconds


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
    one = attention("flash", 256, heads=6, head=64, causal=True)
    assert attention_of(one, cost(one)) == AttentionShape(6, 256, 256, 64, 64, True, False)


def test_a_single_block_of_a_causal_kernel_computes_everything() -> None:
    shape = AttentionShape(1, 128, 128, 64, 64, True, False)
    assert computed_share(shape, 128) == 1.0


def test_a_few_tokens_take_a_few_microseconds() -> None:
    # one block of 128 queries over a block of keys and the filling, on one of 108
    few, block = (kernel_of(attention("flash", n, heads=1), A100) for n in (8, 128))
    assert few == block
    assert KERNEL_S < few.seconds < 20e-6
    assert few.bound is Bound.COMPUTE
