"""Kernels of a real H100 beside the rules' times: tests/truth/corpus, and a bench of that machine.

Rows marked as such gave a constant, all others had no part in any.
"""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.timing.roofline.chips import host, kernel_of
from tests.work.calls import call, given, spec
from torchtally.chips import chip
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.trace import Call, TensorSpec

H100 = chip("H100-SXM")
GAVE = True
"""A constant."""


def us(one: Call) -> float:
    return kernel_of(one, H100).seconds * 1e6


def last(tensor: TensorSpec) -> TensorSpec:
    """With channels last."""
    _, channels, height, width = tensor.shape
    stride = (channels * height * width, 1, width * channels, channels)
    return replace(tensor, stride=stride)


def batch_norm(
    name: str, shape: Sequence[int], dtype: str, *, is_last: bool, backward: bool
) -> Call:
    layout = last if is_last else (lambda tensor: tensor)
    names = ("grad_output", "input") if backward else ("input",)
    whole = [layout(given(each, *shape, dtype=dtype)) for each in names]
    inputs = [*whole, given("weight", shape[1])]
    result = layout(spec(*shape, dtype=dtype))
    return call(f"aten.{name}{'_backward' * backward}", inputs, result, training=True)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "is_last", "backward", "measured_us", "gave"),
    [
        ("cudnn_batch_norm", (64, 64, 112, 112), "float32", False, False, 480, GAVE),
        ("cudnn_batch_norm", (64, 64, 112, 112), "float32", False, True, 1226, GAVE),
        ("cudnn_batch_norm", (64, 64, 56, 56), "float32", False, False, 124, False),
        ("cudnn_batch_norm", (64, 64, 56, 56), "float32", False, True, 313, False),
        ("cudnn_batch_norm", (64, 128, 56, 56), "float32", False, True, 343, False),
        ("cudnn_batch_norm", (64, 1024, 14, 14), "float32", False, False, 56, False),
        ("cudnn_batch_norm", (64, 1024, 14, 14), "float32", False, True, 88, False),
        ("cudnn_batch_norm", (64, 64, 56, 56), "float16", True, False, 28, False),
        ("cudnn_batch_norm", (64, 256, 56, 56), "float16", True, True, 169, False),
        ("cudnn_batch_norm", (64, 64, 112, 112), "float16", True, False, 113, False),
        ("cudnn_batch_norm", (64, 64, 112, 112), "float16", True, True, 174, False),
        ("native_batch_norm", (128, 256, 56, 56), "bfloat16", True, False, 475, GAVE),
        ("native_batch_norm", (128, 512, 28, 28), "bfloat16", True, False, 257, False),
        ("native_batch_norm", (128, 1024, 14, 14), "bfloat16", True, True, 128, False),
        ("native_batch_norm", (8, 64, 133, 133), "float32", False, False, 165, GAVE),
        ("native_batch_norm", (8, 64, 91, 91), "float32", False, False, 80, False),
    ],
)
def test_batch_norms(
    name: str, shape: Sequence[int], dtype: str, is_last: bool, backward: bool,
    measured_us: float, gave: bool,
) -> None:  # fmt: skip
    one = batch_norm(name, shape, dtype, is_last=is_last, backward=backward)
    assert us(one) == pytest.approx(measured_us, rel=0.1 if gave else 0.2)


@pytest.mark.parametrize("name", ["H100-SXM", "RTX-3090", "A100-SXM"])
def test_cudnn_reads_channels_last_twice_at_the_memorys_bandwidth(name: str) -> None:
    """103 MB: read, read and written; backward two gradients' worth more."""
    forward, backward = (
        batch_norm("cudnn_batch_norm", (64, 64, 112, 112), "float16", is_last=True, backward=flag)
        for flag in (False, True)
    )
    pass_s = 2 * 64 * 64 * 112 * 112 / bandwidth_bytes_per_s(chip(name))
    assert kernel_of(forward, chip(name)).seconds == pytest.approx(3 * pass_s, rel=0.03)
    assert kernel_of(backward, chip(name)).seconds == pytest.approx(5 * pass_s, rel=0.03)


def test_blocks_of_64_channels_wait_where_there_are_fewer() -> None:
    """16 channels of four times the places take four times as long, 96 of two thirds as 128."""
    shapes = ((64, 64, 112, 112), (64, 16, 224, 224), (96, 64, 112, 112), (64, 96, 112, 112))
    whole, few, more, odd = (
        kernel_of(
            batch_norm("cudnn_batch_norm", shape, "float16", is_last=True, backward=False),
            chip("RTX-3090"),
        ).seconds
        for shape in shapes
    )
    assert few == pytest.approx(4 * whole, rel=0.02)
    assert odd == pytest.approx(more * 128 / 96, rel=0.02)


def softmax(rows: int, columns: int, dtype: str) -> Call:
    inputs = [given("self", rows, columns, dtype=dtype)]
    return call("aten._softmax", inputs, spec(rows, columns, dtype=dtype), dim=-1)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "measured_us"),
    [
        (17578, 512, "bfloat16", 20.0),
        (64 * 12 * 197, 197, "bfloat16", 82.3),
        (49152, 512, "float32", 66.6),
        (49152, 1024, "float32", 142),
    ],
)
def test_short_softmax_rows_go_by_elements(
    rows: int, columns: int, dtype: str, measured_us: float
) -> None:
    assert us(softmax(rows, columns, dtype)) == pytest.approx(measured_us, rel=0.2)


def whole_sum(elements: int) -> Call:
    return call("aten.sum", [given("self", elements)], spec())


@pytest.mark.parametrize(
    ("elements", "measured_us"), [(2**18, 7.4), (2**22, 13.2), (2**24, 29.4), (2**26, 93.6)]
)
def test_a_sum_of_everything_waits_for_its_blocks(elements: int, measured_us: float) -> None:
    assert us(whole_sum(elements)) == pytest.approx(measured_us, rel=0.2)


def test_a_transposed_copy_finds_its_elements() -> None:
    """3000 x 3000: 74 us in bfloat16, 79 in float32."""
    for dtype, measured_us in (("bfloat16", 74), ("float32", 79)):
        source = replace(given("self", 3000, 3000, dtype=dtype), stride=(1, 3000))
        one = call("aten.clone", [source], spec(3000, 3000, dtype=dtype))
        assert us(one) == pytest.approx(measured_us, rel=0.2)


def test_numbers_are_drawn_at_their_own_rate() -> None:
    inputs = [given("input", 64, 197, 768, dtype="bfloat16")]
    result = spec(64, 197, 768, dtype="bfloat16")
    kept = spec(64, 197, 768, dtype="bool")
    one = call("aten.native_dropout", inputs, result, kept, train=True)
    assert us(one) == pytest.approx(20.1, rel=0.15)


@pytest.mark.parametrize(
    ("name", "elements", "measured_us"),
    [
        ("_foreach_mul_", 131072, 18.0),
        ("_foreach_mul_", 32768, 7.9),
        ("_fused_adamw_", 131072, 39.4),
        ("_fused_adamw_", 32768, 21.0),
    ],
)
def test_a_kernel_on_lists_is_not_done_before_a_chunk(
    name: str, elements: int, measured_us: float
) -> None:
    """Eight tensors in float32."""
    lists = ("self",) if "mul" in name else ("self", "grads", "exp_avgs", "exp_avg_sqs")
    inputs = [given(each, elements, written=True) for each in lists for _ in range(8)]
    assert us(call(f"aten.{name}", inputs)) == pytest.approx(measured_us, rel=0.3)


@pytest.mark.parametrize(
    ("side", "batch", "forward_us", "backward_us"), [(112, 128, 433, 914), (133, 8, 40, 116)]
)
def test_pools_go_by_windows(side: int, batch: int, forward_us: float, backward_us: float) -> None:
    pooled_side = (side + 1) // 2
    source = given("self", batch, 64, side, side, dtype="bfloat16")
    pooled = spec(batch, 64, pooled_side, pooled_side, dtype="bfloat16")
    places = spec(batch, 64, pooled_side, pooled_side, dtype="int64")
    one = call("aten.max_pool2d_with_indices", [source], pooled, places, kernel_size=(3, 3))
    assert us(one) == pytest.approx(forward_us, rel=0.2)
    gradient = given("grad_output", batch, 64, pooled_side, pooled_side, dtype="bfloat16")
    indices = given("indices", batch, 64, pooled_side, pooled_side, dtype="int64")
    result = spec(batch, 64, side, side, dtype="bfloat16")
    back = call("aten.max_pool2d_with_indices_backward", [gradient, source, indices], result)
    assert us(back) == pytest.approx(backward_us, rel=0.25)


@pytest.mark.parametrize(
    ("shape", "dtype", "measured_us"),
    [((64, 3, 224, 224), "float32", 4483), ((64, 3, 224, 224), "bfloat16", 2412)],
)
def test_pageable_batches_come_through_one_thread(
    shape: tuple[int, ...], dtype: str, measured_us: float
) -> None:
    batch = host(shape, is_pinned=False, dtype=dtype)
    one = call("aten._to_copy", [batch], spec(*shape, dtype=dtype))
    assert us(one) == pytest.approx(measured_us, rel=0.25)


def pointwise(side: int, *, is_last: bool, stride: int = 1, dtype: str = "bfloat16") -> Call:
    """64 images of 256 channels to 128."""
    layout = last if is_last else (lambda tensor: tensor)
    inputs = [
        layout(given("input", 64, 256, side, side, dtype=dtype)),
        given("weight", 128, 256, 1, 1, dtype=dtype),
    ]
    result = layout(spec(64, 128, side // stride, side // stride, dtype=dtype))
    allowed = {"allow_tf32": True} if dtype == "float32" else {}
    return call("aten.convolution", inputs, result, stride=(stride, stride), groups=1, **allowed)


@pytest.mark.parametrize(
    ("side", "stride", "dtype", "is_converted"),
    [
        (56, 1, "bfloat16", False),
        (14, 1, "bfloat16", True),  # 392 bytes a channel: not on 16
        (14, 1, "float32", False),  # 784
        (56, 2, "bfloat16", True),
    ],
)
def test_a_filter_of_one_position_reads_channels_first_as_they_lie(
    side: int, stride: int, dtype: str, is_converted: bool
) -> None:
    for on in (H100, *map(chip, ("RTX-4090", "A10", "RTX-5090"))):
        first, of_last = (
            kernel_of(pointwise(side, is_last=flag, stride=stride, dtype=dtype), on).seconds
            for flag in (False, True)
        )
        assert (first > 1.3 * of_last) is is_converted


def depthwise(*, backward: bool) -> Call:
    """64 images of 144 channels and 56 x 56, filtered by 3 x 3, with channels last."""
    shape = (64, 144, 56, 56)
    image = last(given("input", *shape, dtype="bfloat16"))
    weight = given("weight", 144, 1, 3, 3, dtype="bfloat16")
    result = last(spec(*shape, dtype="bfloat16"))
    if not backward:
        return call("aten.convolution", [image, weight], result, groups=144)
    gradient = last(given("grad_output", *shape, dtype="bfloat16"))
    mask = (True, True, False)
    inputs = [gradient, image, weight]
    return call("aten.convolution_backward", inputs, result, groups=144, output_mask=mask)


def test_cudnns_depthwise_filters_go_by_taps() -> None:
    assert us(depthwise(backward=False)) == pytest.approx(62, rel=0.1)
    assert us(depthwise(backward=True)) == pytest.approx(177, rel=0.15)
