"""Depthwise convolutions: PyTorch's own kernels beside cuDNN's."""

from dataclasses import replace

import pytest

from tests.timing.roofline.chips import kernel_of
from tests.timing.roofline.test_convolutions import channels_last
from tests.work.calls import call, given, spec
from torchtally.chips import chip
from torchtally.timing.roofline.depthwise import is_by_cudnn, wanted_taps
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call

T4 = chip("T4")
RTX_2080_TI = replace(
    T4, multiprocessors=68, boost_clock_hz=1.545e9, memory_bandwidth_bytes_per_s=616e9
)


def depthwise(
    batch: int, channels: int, width: int, filters: int, *, dtype: str = "float16", step: int = 1,
    dilation: int = 1, last: bool = False,
) -> Call:  # fmt: skip
    """Square images and filters, with padding."""
    inputs = [
        given("input", batch, channels, width, width, dtype=dtype),
        given("weight", channels, 1, filters, filters, dtype=dtype),
    ]
    if last:
        inputs[0] = channels_last(inputs[0])
    result = spec(batch, channels, width // step, width // step, dtype=dtype)
    return call(
        "aten.convolution", inputs, result, groups=channels, stride=(step, step),
        dilation=(dilation, dilation),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("width", "filters", "published_ms"),
    [
        (16, 7, 14.4), (16, 13, 36.0), (16, 31, 171.4), (32, 5, 34.1), (32, 9, 76.1),
        (32, 21, 342.3), (64, 7, 228.6), (64, 17, 977.7), (64, 29, 2698.4),
    ],
)  # fmt: skip
def test_large_filters_take_what_was_published(
    width: int, filters: int, published_ms: float
) -> None:
    """24 layers in float32 on an RTX 2080 Ti by PyTorch 1.9 (arXiv:2311.15599, table 1)."""
    kernel = kernel_of(depthwise(64, 384, width, filters, dtype="float32"), RTX_2080_TI)
    assert kernel.bound is Bound.COMPUTE
    assert 24e3 * kernel.seconds == pytest.approx(published_ms, rel=0.15)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (depthwise(64, 128, 56, 3), True),
        (depthwise(64, 128, 56, 5), True),
        (depthwise(64, 128, 56, 7), False),
        (depthwise(64, 128, 56, 7, last=True), True),
        (depthwise(64, 128, 56, 3, dtype="float32"), False),
        (depthwise(64, 128, 56, 3, dtype="bfloat16"), False),
        (depthwise(64, 16, 56, 3), False),
        (depthwise(64, 128, 56, 3, dilation=2), False),
        (depthwise(64, 128, 6, 3), False),
        (depthwise(64, 128, 56, 3, step=2), False),
        (depthwise(64, 256, 56, 3, step=2), True),
        (depthwise(64, 512, 14, 5, step=2), True),
        (depthwise(1, 128, 56, 3, step=2), True),
        (depthwise(1, 128, 28, 1, step=2), True),
        (depthwise(64, 128, 28, 1, step=2), False),
        (depthwise(64, 512, 57, 3, step=3), False),
    ],
)
def test_cudnn_runs_what_pytorch_gives_it(one: Call, expected: bool) -> None:
    assert is_by_cudnn(one) is expected


def test_of_one_dimension_cudnn_runs_steps_of_one() -> None:
    def one(dtype: str) -> Call:
        inputs = [given("input", 8, 64, 1024, dtype=dtype), given("weight", 64, 1, 4, dtype=dtype)]
        result = spec(8, 64, 1024, dtype=dtype)
        return call("aten.convolution", inputs, result, groups=64, stride=(1,), dilation=(1,))

    assert is_by_cudnn(one("float16"))
    assert not is_by_cudnn(one("float32"))


def test_each_gradient_has_its_taps() -> None:
    """By hand: 2 images of 64 channels, 10 x 10 positions; a warp passes over 100 in 4 times 32."""
    inputs = [
        given("grad_output", 2, 64, 10, 10),
        given("input", 2, 64, 10, 10),
        given("weight", 64, 1, 7, 7),
    ]

    def taps(*output_mask: bool) -> list[float]:
        results = [spec(2, 64, 10, 10), spec(64, 1, 7, 7)]
        return wanted_taps(
            call("aten.convolution_backward", inputs, *results, groups=64, output_mask=output_mask)
        )

    of_input, of_filter = 2 * 64 * 100 * (49 + 22), 3 * 2 * 64 * 128 * 49
    assert taps(True, True, False) == [of_input, of_filter]
    assert taps(False, True, True) == [of_filter]
    assert taps(False, False, True) == []
