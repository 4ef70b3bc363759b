"""Numbers that share a scale, by hand; and what is typed, exactly."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.number_formats import (
    FORMATS,
    Conversion,
    RoundingOutcome,
    choose_formats,
    convert,
    real_of,
)


def converted(name: str, *numbers: str | float) -> tuple[Conversion, ...]:
    return convert(FORMATS[name], [real_of(number) for number in numbers])


def values(name: str, *numbers: str | float) -> list[float]:
    return [conversion.value for conversion in converted(name, *numbers)]


def test_the_scale_of_a_microscaling_block_is_a_power_of_two() -> None:
    """12 lies from 8 to 16, e2m1's largest exponent is 2: the scale is 2**(3 - 2) = 2."""
    twelve, one, small = converted("mxfp4", 12, 1, 0.1)
    assert (twelve.scale, twelve.scale_bits, twelve.value, twelve.bits) == (
        2, "10000000", 12, "0 11 1",
    )  # fmt: skip
    assert (one.value, one.bits) == (1, "0 00 1")  # 1 / 2 is e2m1's subnormal
    assert (small.value, small.outcome, small.error) == (0, RoundingOutcome.UNDERFLOW, 1)


def test_an_element_above_the_largest_saturates() -> None:
    """500 is in [256, 512): a scale of 1, and e4m3 ends at 448. 2**15 * 1.99 ends at e5m2's."""
    (held,) = converted("mxfp8_e4m3", 500)
    assert (held.scale, held.value, held.outcome) == (1, 448, RoundingOutcome.SATURATED)
    (held,) = converted("mxfp8_e5m2", 65504)
    assert (held.scale, held.value, held.outcome) == (1, 57344, RoundingOutcome.SATURATED)


def test_each_32_numbers_have_a_scale_of_their_own() -> None:
    held = converted("mxfp4", *[1] * 32, 64)
    assert {conversion.scale for conversion in held[:32]} == {0.25}
    assert held[32].scale == 16
    assert [conversion.value for conversion in held] == [1] * 32 + [64]


def test_nvfp4_has_a_scale_for_the_tensor_and_one_for_each_16_numbers() -> None:
    """2688 = 6 * 448 makes the tensor's scale 1; a block up to 3 then has the scale 0.5."""
    held = converted("nvfp4", 2688, *[0] * 15, 3, 0.5, 0.2)
    assert (held[0].value, held[0].scale, held[0].scale_bits) == (2688, 448, "0 1111 110")
    assert [c.value for c in held[16:]] == [3, 0.5, 0.25]
    assert {c.scale for c in held[16:]} == {0.5}


def test_integers_of_one_scale() -> None:
    """127 makes the scale 1; 127 / 2 makes it a half."""
    assert values("int8", 127, 1.5, -0.4, -127) == [127, 2, 0, -127]
    assert values("int8", 63.5, 0.75) == [63.5, 1]
    assert values("int4", 7, 2.5, -8) == pytest.approx([6 * 8 / 7, 2 * 8 / 7, -8], rel=1e-7)
    assert [c.bits for c in converted("int4", 7, -7, 1)] == ["0111", "1001", "0001"]
    assert math.copysign(1, values("int8", 127, -0.1)[1]) == 1  # integers have one zero


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40))
def test_integers_are_those_of_torch(numbers: list[float]) -> None:
    numbers = [float(torch.tensor(number, dtype=torch.float32)) for number in numbers]
    held = converted("int8", *numbers)
    if not (scale := held[0].scale):
        return
    tensor = torch.tensor(numbers, dtype=torch.float64)
    expected = torch.round(tensor / scale).clamp(-127, 127) * scale
    assert [conversion.value for conversion in held] == expected.tolist()


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "nvfp4"])
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=16))
def test_a_block_is_off_by_no_more_than_its_largest_number_allows(
    name: str, numbers: list[float]
) -> None:
    """The step of the largest elements, times the scale; saturation takes a quarter at most."""
    for number, held in zip(numbers, converted(name, *numbers), strict=True):
        assert held.scale is not None
        largest = float(FORMATS[name].layout.largest) * held.scale
        assert abs(held.value - number) <= largest / 6 or number > largest
        assert held.value >= 0.75 * min(number, largest) or number < largest / 8


def test_zeros_have_no_error() -> None:
    for name in FORMATS:
        assert values(name, 0, -0.0) == [0, 0]
        assert [c.outcome for c in converted(name, 0)] == [RoundingOutcome.EXACT]


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8"])
def test_inf_and_nan_take_their_block_with_them(name: str) -> None:
    held = converted(name, 1, "inf")
    assert all(math.isnan(conversion.value) for conversion in held)
    assert {conversion.outcome for conversion in held} == {RoundingOutcome.OVERFLOW}
    assert math.isnan(values(name, "nan")[0])


def test_numbers_outside_of_a_scale_s_range() -> None:
    assert values("int8", "1e-60") == [0]
    assert math.isnan(values("int8", "1e60")[0])
    assert math.isnan(values("nvfp4", "1e60")[0])
    assert values("mxfp8_e4m3", "1e-60", "1e60") == [0, 448 * 2.0**127]


def test_errors_are_relative_and_of_the_number_that_was_typed() -> None:
    (held,) = converted("bf16", "0.1")
    assert held.value == 0.10009765625
    assert held.error == pytest.approx(0.00009765625 / 0.1, rel=1e-12)
    (held,) = converted("fp64", "0.1")
    assert held.error == pytest.approx(5.55e-17, rel=1e-3)
    assert converted("fp64", 0.1)[0].error == 0  # the float that Python made of it
    assert converted("fp16", 0)[0].error is None
    assert converted("fp16", "1e6")[0].error is None


READ = {
    "0.1": Fraction(1, 10),
    "1/3": Fraction(1, 3),
    " -1e-8 ": Fraction(-1, 10**8),
    "+65504": Fraction(65504),
    "2**-24": Fraction(1, 2**24),
    "-2^10": Fraction(-1024),
    "2**(-3)/3": Fraction(1, 24),
    ".5e1": Fraction(5),
    "-inf": -math.inf,
    "Infinity": math.inf,
}


@pytest.mark.parametrize("text", READ)
def test_a_number_is_read_exactly(text: str) -> None:
    assert real_of(text) == READ[text]


def test_a_negative_zero_keeps_its_sign() -> None:
    for zero in ("-0", "-0.0", -0.0):
        assert math.copysign(1, real_of(zero)) == -1
    assert math.isnan(real_of("nan"))


@pytest.mark.parametrize(
    "text", ["", "one", "1/0", "1e6000", "2**30000", "0x10", "1_000", "--1", "9" * 500, "1/2/3"]
)
def test_what_is_not_a_number_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        real_of(text)


def test_formats_are_chosen_by_name_as_torch_spells_it_or_by_family() -> None:
    assert [row.name for row in choose_formats(["torch.bfloat16", "half", "bf16"])] == [
        "bf16",
        "fp16",
    ]
    assert [row.name for row in choose_formats(["mxfp6"])] == ["mxfp6_e3m2", "mxfp6_e2m3"]
    assert [row.name for row in choose_formats(["fp6"])] == ["fp6_e3m2", "fp6_e2m3"]
    assert len(choose_formats([])) == len(FORMATS) == 18
    with pytest.raises(UsageError, match="Did you mean"):
        choose_formats(["fp61"])


def test_memory_of_a_number_has_its_part_of_the_scale() -> None:
    sizes = {"tf32": 32, "bf16": 16, "mxfp8_e4m3": 8 + 8 / 32, "nvfp4": 4 + 8 / 16,
             "int4": 4 + 32 / 128, "int8": 8}  # fmt: skip
    assert {name: FORMATS[name].bits_per_number for name in sizes} == sizes


def test_names_lead_to_one_format() -> None:
    names = [name for row in FORMATS.values() for name in row.names]
    assert len({*names}) == len([name for row in FORMATS.values() for name in {*row.names}])


def test_dtypes_are_those_of_torch() -> None:
    for row in FORMATS.values():
        if row.torch_name:
            dtype = getattr(torch, row.torch_name)
            packed = 2 if row.torch_name.endswith("_x2") else 1
            assert 8 * dtype.itemsize == packed * row.element_bits
