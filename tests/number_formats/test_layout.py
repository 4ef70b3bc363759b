"""Every number in every format: against torch's own dtypes, and against tables by hand."""

import itertools
import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from torchtally.number_formats import FORMATS, FloatLayout, IntegerLayout, RoundingOutcome
from torchtally.number_formats.layout import bits_text, exponent_of

OF_TORCH = {
    "fp64": (torch.float64, torch.int64),
    "fp32": (torch.float32, torch.int32),
    "fp16": (torch.float16, torch.int16),
    "bf16": (torch.bfloat16, torch.int16),
    "fp8_e4m3": (torch.float8_e4m3fn, torch.uint8),
    "fp8_e5m2": (torch.float8_e5m2, torch.uint8),
}
SATURATES_SINCE = (2, 13)
RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M3 = [n / 8 for n in range(16)] + [n / 4 for n in range(8, 16)] + [n / 2 for n in range(8, 16)]
E3M2 = [n / 16 for n in range(8)] + [
    2.0**exponent * (1 + n / 4) for exponent in range(-1, 5) for n in range(4)
]
"""All numbers that are not negative, by their codes: OCP Microscaling Formats, section 5.3."""


def layout(name: str) -> FloatLayout:
    layout = FORMATS[name].layout
    assert isinstance(layout, FloatLayout)
    return layout


def same(one: float | Fraction, other: float) -> bool:
    """Also the sign of a zero, and NaN."""
    if math.isnan(other):
        return math.isnan(one)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def in_torch(number: float, name: str) -> tuple[int, float]:
    """(code, value) of a number that torch rounds. From float64, so that it rounds once."""
    dtype, whole = OF_TORCH[name]
    rounded = torch.tensor(number, dtype=torch.float64).to(dtype)
    bits = 8 * dtype.itemsize
    code = rounded.reshape(1).view(whole).item()
    return int(code) & ((1 << bits) - 1), float(rounded.double().item())


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_each_code_of_eight_bits_is_the_number_that_torch_says(name: str) -> None:
    dtype, _ = OF_TORCH[name]
    values = torch.arange(256, dtype=torch.uint8).view(dtype).double().tolist()
    for code, value in enumerate(values):
        decoded = layout(name).decode(code)
        assert same(decoded, value), code
        if not math.isnan(value):
            assert layout(name).round(decoded).code == code


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_each_code_of_sixteen_bits_is_the_number_that_torch_says(name: str) -> None:
    dtype, _ = OF_TORCH[name]
    codes = range(-(2**15), 2**15, 7)  # coprime to two: every exponent, and every mantissa once
    values = torch.tensor(list(codes), dtype=torch.int16).view(dtype).double().tolist()
    for code, value in zip(codes, values, strict=True):
        assert same(layout(name).decode(code % 2**16), value), code


@pytest.mark.parametrize("name", OF_TORCH)
def test_between_any_two_numbers_of_eight_bits_torch_rounds_alike(name: str) -> None:
    """And at the middle, where the last bit decides."""
    e4m3 = layout("fp8_e4m3")
    numbers = [e4m3.decode(code) for code in range(127)]
    for one, other in itertools.pairwise(numbers):
        for share in (0.25, 0.5, 0.75):
            number = float(one) + share * float(other - one)
            rounded = layout(name).round(number)
            code, value = in_torch(number, name)
            assert (rounded.code, float(rounded.value)) == (code, value), number


@pytest.mark.parametrize("name", OF_TORCH)
@given(number=st.floats(allow_nan=False))
@example(0.1)
@example(-0.0)
@example(65519.99)
@example(65520.0)
@example(2.0**-25)
@example(math.nextafter(2.0**-25, 1))
@example(61440.0)
@example(3.4028235677973366e38)
@example(5e-324)
@example(math.inf)
def test_any_number_becomes_what_torch_makes_of_it(name: str, number: float) -> None:
    if name == "fp8_e4m3" and abs(number) > 464 and RELEASE < SATURATES_SINCE:
        return
    # torch's kernel from float64 goes through float32: rounding to it first rounds twice.
    single = float(torch.tensor(number, dtype=torch.float32)) if name != "fp64" else number
    rounded = layout(name).round(single)
    code, value = in_torch(single, name)
    assert rounded.code == code
    assert same(rounded.value, value)


@given(
    name=st.sampled_from(["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]),
    code=st.integers(0, 2**16 - 1),
    share=st.fractions(0, 1),
)
def test_the_nearer_neighbour_is_taken(name: str, code: int, share: Fraction) -> None:
    """Of two as near, the even one."""
    row = layout(name)
    code %= 1 << (sum(row.widths) - 1)
    low, high = row.decode(code), row.decode(code + 1)
    if not (math.isfinite(low) and math.isfinite(high)):
        return
    near = (share > Fraction(1, 2)) if share != Fraction(1, 2) else code % 2
    assert row.round(low + share * Fraction(high - low)).code == code + near


def test_tf32_is_float32_without_its_last_13_bits() -> None:
    for number in (0.1, 1 / 3, 1e-8, 65504.0, 1e-40, 3.4e38, 1 + 2**-11, 1 + 3 * 2**-11):
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
        half_up = bits + 0xFFF + ((bits >> 13) & 1)  # ties to even
        (expected,) = struct.unpack("<f", struct.pack("<I", half_up & ~0x1FFF))
        exact = Fraction(struct.unpack("<f", struct.pack("<f", number))[0])
        assert layout("tf32").round(exact).value == expected


@pytest.mark.parametrize(
    ("name", "numbers"), [("fp4_e2m1", FP4), ("fp6_e2m3", E2M3), ("fp6_e3m2", E3M2)]
)
def test_the_small_formats_hold_these_numbers_and_no_others(
    name: str, numbers: list[float]
) -> None:
    row = layout(name)
    assert [row.decode(code) for code in range(1 << (sum(row.widths) - 1))] == numbers
    assert row.largest == max(numbers)
    for low, high in itertools.pairwise(numbers):
        middle = (low + high) / 2
        assert row.round(low).code == numbers.index(low)
        assert row.round(-middle + 1e-9).value == -low
        assert row.round(middle + 1e-9).value == high
        assert row.round(middle).code % 2 == 0
    for beyond in (1e9, math.inf, math.nan):
        assert row.round(beyond).value == max(numbers)
        assert row.round(beyond).outcome is RoundingOutcome.SATURATED


@pytest.mark.parametrize("name", OF_TORCH)
def test_ranges_are_those_of_torch(name: str) -> None:
    info, row = torch.finfo(OF_TORCH[name][0]), layout(name)
    assert row.largest == info.max
    assert row.smallest_normal == info.tiny
    assert row.spacing_at_one == info.eps
    assert row.round(row.smallest_subnormal).code == 1


def test_what_becomes_of_a_number_is_said() -> None:
    half = layout("fp16")
    least = 2.0**-24
    assert half.round(0.5).outcome is RoundingOutcome.EXACT
    assert half.round(0.1).outcome is RoundingOutcome.ROUNDED
    assert half.round(1.4 * least).outcome is RoundingOutcome.SUBNORMAL
    assert half.round(least / 2).outcome is RoundingOutcome.UNDERFLOW
    assert half.round(65519).value == 65504
    assert half.round(65520).outcome is RoundingOutcome.OVERFLOW
    assert half.round(-math.inf).outcome is RoundingOutcome.EXACT
    assert layout("fp8_e4m3").round(465).outcome is RoundingOutcome.SATURATED
    assert layout("fp8_e4m3").round(math.inf).value == 448


def test_spacing_doubles_at_each_power_of_two() -> None:
    bf16 = layout("bf16")
    assert bf16.round(1).spacing == Fraction(1, 128)
    assert bf16.round(1.999).spacing == Fraction(1, 64)  # becomes 2
    assert bf16.round(256).spacing == 2
    assert bf16.round(0).spacing == bf16.smallest_subnormal


def test_whole_numbers_round_to_even_and_saturate() -> None:
    byte = IntegerLayout(8)
    values = {0.5: 0, 1.5: 2, -2.5: -2, 126.6: 127, 1000: 127, -1000: -127}
    assert {number: byte.round(number).value for number in values} == values
    assert byte.round(-1).code == 255
    assert (byte.least, byte.largest) == (-128, 127)
    assert byte.round(0.25).outcome is RoundingOutcome.UNDERFLOW
    assert byte.round(1000).outcome is RoundingOutcome.SATURATED


def test_bits_are_drawn_in_groups() -> None:
    assert bits_text(0b0_01111_1000000000, (1, 5, 10)) == "0 01111 1000000000"
    assert bits_text(5, (4,)) == "0101"


@given(st.fractions(min_value=Fraction(1, 10**40), max_value=10**40))
def test_an_exponent_brackets_its_number(number: Fraction) -> None:
    exponent = exponent_of(number)
    assert Fraction(2) ** exponent <= number < Fraction(2) ** (exponent + 1)
