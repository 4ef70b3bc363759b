"""Convolutions as products."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.timing.roofline.chips import kernel_of
from tests.work.calls import call, cost, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import CUDNN_TAPS_PER_CLOCK, KERNEL_S
from torchtally.timing.roofline.conversions import padded_channels
from torchtally.timing.roofline.convolutions import implicit_products
from torchtally.timing.roofline.products import Product, product_s
from torchtally.trace import Call, Literal, TensorSpec

A100 = chip("A100-SXM")


def channels_last(tensor: TensorSpec) -> TensorSpec:
    _, channels, height, width = tensor.shape
    stride = (channels * height * width, 1, width * channels, channels)
    return replace(tensor, stride=stride)


def forward(
    channels: int, out: int, *, groups: int = 1, dtype: str = "float16", last: bool = True,
    **literals: Literal,
) -> Call:  # fmt: skip
    """8 images of 32 x 32, filters of 3 x 3 with padding."""
    layout = channels_last if last else (lambda tensor: tensor)
    inputs = [
        layout(given("input", 8, channels, 32, 32, dtype=dtype)),
        given("weight", out, channels // groups, 3, 3, dtype=dtype),
    ]
    result = layout(spec(8, out, 32, 32, dtype=dtype))
    return call("aten.convolution", inputs, result, groups=groups, **literals)


def backward(output_mask: tuple[bool, bool, bool]) -> Call:
    inputs = [
        channels_last(given("grad_output", 8, 128, 32, 32, dtype="float16")),
        channels_last(given("input", 8, 64, 32, 32, dtype="float16")),
        given("weight", 128, 64, 3, 3, dtype="float16"),
    ]
    result = channels_last(spec(8, 64, 32, 32, dtype="float16"))
    return call("aten.convolution_backward", inputs, result, groups=1, output_mask=output_mask)


def test_forward_is_one_product_of_positions_by_channels() -> None:
    one = forward(64, 128)
    expected = Product(1, 8 * 32 * 32, 128, 64 * 9, "float16", 2, is_convolution=True)
    assert implicit_products(one, cost(one)) == (expected,)


def test_backward_is_a_product_for_each_gradient() -> None:
    both = backward((True, True, False))
    of_input, of_filter = implicit_products(both, cost(both))
    positions = 8 * 32 * 32
    assert of_input == Product(1, positions, 64, 128 * 9, "float16", 2, is_convolution=True)
    assert of_filter == Product(1, 128, 64 * 9, positions, "float16", 2, is_convolution=True)
    alone = backward((False, True, False))
    assert implicit_products(alone, cost(alone)) == (of_filter,)


def test_each_gradient_takes_about_as_long_as_forward() -> None:
    both = kernel_of(backward((True, True, False)), A100).seconds
    assert both == pytest.approx(2 * kernel_of(forward(64, 128), A100).seconds, rel=0.5)


def test_channels_last_saves_the_transposes() -> None:
    last = kernel_of(forward(64, 128), A100).seconds
    first = kernel_of(forward(64, 128, last=False), A100).seconds
    moved_bytes = 2 * 2 * 8 * (64 + 128) * 32 * 32
    assert first - last > moved_bytes / A100.memory_bandwidth_bytes_per_s


def test_depthwise_goes_by_taps_and_not_by_products() -> None:
    """9 for each of 33.6 M elements."""
    taps = 9 * 8 * 4096 * 32 * 32
    assert A100.multiprocessors is not None
    assert A100.boost_clock_hz is not None
    expected = taps / (CUDNN_TAPS_PER_CLOCK * A100.multiprocessors * A100.boost_clock_hz)
    kernel = kernel_of(forward(4096, 4096, groups=4096), A100)
    assert kernel.seconds == pytest.approx(expected + KERNEL_S)


def test_float32_uses_tf32_when_the_script_allows_it() -> None:
    allowed = kernel_of(forward(512, 512, dtype="float32", allow_tf32=True), A100).seconds
    plain = kernel_of(forward(512, 512, dtype="float32"), A100).seconds
    assert plain / allowed > 3


@pytest.mark.parametrize(("channels", "padded"), [(1, 8), (3, 8), (8, 8), (9, 16)])
def test_few_channels_are_padded(channels: int, padded: int) -> None:
    assert padded_channels(channels) == padded


def test_three_channels_are_multiplied_as_eight() -> None:
    three, eight = (implicit_products(one, cost(one)) for one in (forward(3, 64), forward(8, 64)))
    assert three == eight


def test_channels_in_pieces_take_the_time_to_find_them() -> None:
    """16 bytes of a position are found by themselves; 64 are a whole step over K."""
    pieces = [implicit_products(one, cost(one))[0] for one in (forward(8, 128), forward(32, 128))]
    assert [product.piece_bytes for product in pieces] == [16, 64]
    short, whole = (product_s(product, A100)[0] for product in pieces)
    assert short > whole / 2  # for a quarter of the work


def test_what_cudnn_tries_has_a_kernel_for_few_channels() -> None:
    """`torch.backends.cudnn.benchmark`: at the rate of whole steps."""
    usual, tried = (forward(3, 64, **options) for options in ({}, {"benchmark": True}))
    slow, fast = (
        product_s(implicit_products(one, cost(one))[0], A100)[0] for one in (usual, tried)
    )
    eight = forward(8, 64, benchmark=True)
    assert fast == product_s(implicit_products(eight, cost(eight))[0], A100)[0]
    assert slow > 2 * fast


def test_channels_first_are_read_as_they_lie_where_a_filter_has_one_position() -> None:
    """64 images of 64 channels: as fast as with channels last on 8.6 and 8.9, not on 8.0."""
    first, last = pointwise(lambda tensor: tensor), pointwise(channels_last)
    for reading in (chip("RTX-4090"), chip("RTX-3090")):
        assert kernel_of(first, reading).seconds == kernel_of(last, reading).seconds
    converting = chip("A100-SXM")
    assert kernel_of(first, converting).seconds > 1.5 * kernel_of(last, converting).seconds


def pointwise(layout: Callable[[TensorSpec], TensorSpec]) -> Call:
    images = layout(given("input", 64, 64, 56, 56, dtype="float16"))
    weight = given("weight", 256, 64, 1, 1, dtype="float16")
    return call(
        "aten.convolution", [images, weight], layout(spec(64, 256, 56, 56, dtype="float16"))
    )
