"""Printed numbers say what they stand for, stay narrow, and read back."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally import units
from torchtally.errors import UsageError
from torchtally.units import parse_count, parse_fraction, parse_number, parse_seconds, parse_usd

GIB = 2**30


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * GIB // 2, "1.50 GiB"),
        (1000 * GIB, "1000.0 GiB"),
        (1024 * GIB - 1, "1.00 TiB"),  # rounds up into the next unit, never "1024.0 GiB"
        (81559 * 2**20, "79.65 GiB"),
        (-512, "-512 B"),
    ],
)
def test_bytes_are_binary(n, text):
    assert units.format_bytes(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 FLOPs"),
        (999, "999 FLOPs"),
        (1000, "1.00 KFLOPs"),
        (6_300_000_000_000, "6.30 TFLOPs"),
        (999_999_999, "1.00 GFLOPs"),
        (3 * 10**24, "3.00 YFLOPs"),
        (10**30, "1.00e+30 FLOPs"),
    ],
)
def test_flops_are_decimal(n, text):
    assert units.format_flops(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0012, "1.20 ms"),
        (330e-9, "330.0 ns"),
        (2.5e-6, "2.50 us"),
        (59.999, "1.00 min"),
        (61, "1.02 min"),
        (3600, "1.00 h"),
        (143.9 * 86400, "143.9 days"),
        (math.inf, "inf s"),
    ],
)
def test_seconds_choose_their_unit(seconds, text):
    assert units.format_seconds(seconds) == text


def test_speeds_counts_fractions_and_money():
    assert units.format_flop_per_s(989.4e12) == "989.40 TFLOP/s"
    assert units.format_byte_per_s(3.35e12) == "3.35 TB/s"
    assert units.format_count(124_439_808) == "124.44 M"
    assert units.format_count(70 * 10**9) == "70.00 B"
    assert units.format_fraction(0.431) == "43.1 %"
    assert units.format_fraction(1.0) == "100.0 %"
    assert units.format_usd(3.99) == "$3.99"
    assert units.format_energy(0) == "0 Wh"
    assert units.format_energy(3600) == "1.00 Wh"
    assert units.format_energy(36) == "10.00 mWh"
    assert units.format_energy(700 * 86400) == "16.80 kWh"
    assert units.format_energy(3.6e15) == "1.00 TWh"
    assert units.format_usd(1_840_000) == "$1.84 M"


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("80GB", 80 * 10**9),
        ("80 GB", 80 * 10**9),
        ("80GiB", 80 * GIB),
        ("80e9", 80 * 10**9),
        ("81559 MiB", 81559 * 2**20),
        ("1.5GiB", 3 * GIB // 2),
        ("512", 512),
        ("512 B", 512),
    ],
)
def test_sizes_as_people_write_them(text, n):
    assert units.parse_bytes(text) == n


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("70B", 70 * 10**9),
        ("70.6b", 70_600_000_000),
        ("15T", 15 * 10**12),
        ("3e24", 3 * 10**24),  # exact: a float would be off by 2**27
        ("40e9", 40 * 10**9),
        ("124.4M", 124_400_000),
    ],
)
def test_counts_are_exact(text, n):
    assert units.parse_count(text) == n


@pytest.mark.parametrize(
    ("parse", "text", "example"),
    [
        (units.parse_bytes, "80gb", "80GB"),
        (units.parse_bytes, "80Gb", "80GB"),  # bits; 8 times less
        (units.parse_bytes, "-1GB", "80GB"),
        (units.parse_bytes, "", "80GB"),
        (units.parse_bytes, "1e999999999", "80GB"),  # would fill memory with digits
        (units.parse_count, "seventy", "70B"),
        (units.parse_count, "1.5", "70B"),
        (units.parse_count, "80GB", "70B"),
    ],
)
def test_bad_input_is_named_beside_what_works(parse, text, example):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert example in str(caught.value)


def number(text: str) -> str:
    """What stands before the unit."""
    return text.lstrip("-").split()[0]


BYTES = st.integers(0, 2**80)
COUNTS = st.integers(0, 10**15)


@given(BYTES)
def test_bytes_read_back_within_what_is_printed(n):
    assert units.parse_bytes(units.format_bytes(n)) == pytest.approx(n, rel=0.5 / 100, abs=0)


@given(COUNTS)
def test_counts_read_back_within_what_is_printed(n):
    assert units.parse_count(units.format_count(n)) == pytest.approx(n, rel=0.5 / 100, abs=0)


@given(BYTES, BYTES)
def test_more_never_prints_as_less(a, b):
    small, large = sorted((a, b))
    print_and_parse = lambda n: units.parse_bytes(units.format_bytes(n))  # noqa: E731
    assert print_and_parse(small) <= print_and_parse(large)


@given(BYTES)
def test_bytes_stay_narrow(n):
    text = units.format_bytes(n)
    assert len(number(text)) <= 6
    assert len(text) <= 10


@given(st.integers(-(10**26), 10**26))
def test_flops_stay_narrow(n):
    assert len(number(units.format_flops(n))) <= 6


@given(st.floats(0, 1e10))
def test_seconds_stay_narrow(seconds):
    text = units.format_seconds(seconds)
    assert len(number(text)) <= 5
    assert len(text) <= 11  # "99.99 years"


@given(st.floats(1e-3, 1e18))
def test_energies_read_back_within_what_is_printed(joules):
    amount, unit = units.format_energy(joules).split()
    watt_hours = float(amount) * {name: size for size, name in units.WATT_HOURS}[unit]
    assert watt_hours * 3600 == pytest.approx(joules, rel=0.5 / 100, abs=0.02)
    assert len(amount) <= 6


@given(st.integers(1, 2**80))
def test_a_sign_changes_nothing_else(n):
    assert units.format_bytes(-n) == "-" + units.format_bytes(n)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_fraction, "40%", 0.4),
        (parse_fraction, "0.4", 0.4),
        (parse_fraction, "0.5 %", 0.005),
        (parse_seconds, "30d", 30 * 86400),
        (parse_seconds, "1mo", 365.25 / 12 * 86400),
        (parse_seconds, "24h", 24 * 3600),
        (parse_seconds, "90min", 5400),
        (parse_seconds, "500ms", 0.5),
        (parse_usd, "$1.5M", 1.5e6),
        (parse_usd, "2.49", 2.49),
        (parse_number, "3e-4", 3e-4),
        (parse_number, "400K", 400_000),
        (parse_count, "128Ki", 128 * 1024),
        (parse_count, "128K", 128_000),
    ],
)
def test_numbers_as_people_write_them(
    parse: Callable[[str], float], text: str, value: float
) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_fraction, "140%"),
        (parse_fraction, "-1"),
        (parse_seconds, "30"),
        (parse_seconds, "3 moons"),
        (parse_usd, "€3"),
        (parse_number, "3e99T"),
        (parse_count, "1.5"),
    ],
)
def test_numbers_that_nobody_means(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(UsageError, match="These work"):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04394, "44 ms"), (1.24e-6, "1.2 us"), (3.04, "3 s"), (0.0998, "100 ms")],
)
def test_a_bound_has_two_digits(seconds: float, text: str) -> None:
    assert units.roughly(seconds) == text
