"""What a convolution moves besides its products."""

import pytest
from msgspec.structs import replace

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given, spec
from torchtally.timing.constants import CLOCK_HZ, KERNEL_S, PADDED_PLACES_PER_S, PLACES_PER_S
from torchtally.timing.roofline.conversions import (
    bias_gradient_s,
    bias_s,
    conversion_s,
    needs_conversion,
)
from torchtally.timing.roofline.strided import finding_s
from torchtally.trace import Call, TensorSpec

TERABYTE_PER_S = 1e12


def first(channels: int) -> TensorSpec:
    return given("input", 4, channels, 10, 10, dtype="float16")


def last(channels: int) -> TensorSpec:
    return replace(first(channels), stride=(100 * channels, 1, 10 * channels, channels))


def test_channels_go_to_the_end_by_a_kernel_that_finds_each_element() -> None:
    """4 x 16 x 100 numbers of 2 bytes, read and written."""
    expected_s = 2 * 2 * 6400 / TERABYTE_PER_S + 6400 / (10 * PLACES_PER_S) + KERNEL_S
    assert conversion_s(first(16), toy()) == pytest.approx(expected_s)


def test_three_channels_are_written_as_eight() -> None:
    """400 positions: 1200 numbers read, 3200 written."""
    expected_s = 2 * 4400 / TERABYTE_PER_S + 3200 / (10 * PADDED_PLACES_PER_S) + KERNEL_S
    assert conversion_s(first(3), toy()) == pytest.approx(expected_s)


def test_channels_last_are_padded_where_they_are_odd() -> None:
    padded = [needs_conversion(spec) for spec in (last(16), last(28), last(3), first(16))]
    assert padded == [False, False, True, True]


def test_one_position_or_one_channel_lies_the_same_in_both_layouts() -> None:
    assert not needs_conversion(given("weight", 64, 16, 1, 1, dtype="float16"))


def test_a_faster_clock_finds_more() -> None:
    slow, fast = (toy(boost_clock_hz=times * CLOCK_HZ) for times in (1, 2))
    assert finding_s(1000, PLACES_PER_S, slow) == 1000 / (10 * PLACES_PER_S)
    assert finding_s(1000, PLACES_PER_S, fast) == 500 / (10 * PLACES_PER_S)
    assert finding_s(1000, PLACES_PER_S, toy(multiprocessors=None)) == 0


def convolved(*, has_bias: bool) -> Call:
    inputs = [last(16), given("weight", 16, 16, 1, 1, dtype="float16")]
    if has_bias:
        inputs.append(given("bias", 16, dtype="float16"))
    return call("aten.convolution", inputs, replace(last(16), argument=""), groups=1)


def test_a_bias_is_added_by_a_kernel_of_its_own() -> None:
    with_bias, without = (kernel_of(convolved(has_bias=has), toy()) for has in (True, False))
    assert with_bias.seconds - without.seconds == pytest.approx(bias_s(last(16), toy()))


def gradients(channels_last: bool, *wanted: bool) -> Call:
    layout = last if channels_last else first
    gradient = replace(layout(16), argument="grad_output")
    inputs = [gradient, layout(16), given("weight", 16, 16, 1, 1, dtype="float16")]
    results = [spec(4, 16, 10, 10, dtype="float16")]
    return call("aten.convolution_backward", inputs, *results, groups=1, output_mask=wanted)


def test_each_gradient_converts_its_operands_itself() -> None:
    """For both, the gradient of the output twice: four conversions."""
    by_first, by_last = (
        kernel_of(gradients(channels_last, True, True, False), toy()).seconds
        for channels_last in (False, True)
    )
    assert by_first - by_last == pytest.approx(4 * conversion_s(first(16), toy()))


def test_a_bias_gradient_is_a_sum_of_its_own() -> None:
    with_bias, without = (
        kernel_of(gradients(True, True, True, has), toy()).seconds for has in (True, False)
    )
    assert with_bias - without == pytest.approx(bias_gradient_s(last(16), toy()))
