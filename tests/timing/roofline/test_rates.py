"""Which rate applies: what was measured, then the estimate, never more than the promise."""

from types import MappingProxyType

import pytest

from tests.timing.roofline.chips import toy
from torchtally.chips import Chip, Peak, chip, known_chips
from torchtally.timing.constants import ACHIEVED_SHARE_OF_BANDWIDTH, SHARE_OF_PEAK
from torchtally.timing.roofline.rates import (
    achieved_flop_per_s,
    bandwidth_bytes_per_s,
    normalization_bytes_per_s,
    peak_of,
    uses_matrix_unit,
    vector_peak_flop_per_s,
)


def promising(flop_per_s: float, achieved_flop_per_s: float | None = None) -> Chip:
    peak = Peak(flop_per_s, "promise", achieved_flop_per_s=achieved_flop_per_s)
    return toy(peaks=MappingProxyType({"float16": peak}))


def test_a_published_measurement_comes_first() -> None:
    assert achieved_flop_per_s("float16", promising(100.0, 70.0)) == 70.0


def test_without_one_the_estimate_stands_in() -> None:
    assert achieved_flop_per_s("float16", promising(100.0)) == 100 * SHARE_OF_PEAK
    slow = toy(achieved_bandwidth_bytes_per_s=None)
    assert bandwidth_bytes_per_s(slow) == 1e12 * ACHIEVED_SHARE_OF_BANDWIDTH


def test_a_measurement_above_the_promise_is_cut_to_it() -> None:
    assert achieved_flop_per_s("float16", promising(100.0, 110.0)) == 100.0


def test_a_norm_reaches_less_than_a_copy() -> None:
    assert normalization_bytes_per_s(toy()) < bandwidth_bytes_per_s(toy())


@pytest.mark.parametrize("name", ["V100-SXM-16GB", "T4"])
def test_bfloat16_is_computed_in_float32_where_there_is_no_unit(name: str) -> None:
    assert peak_of("bfloat16", chip(name)) == chip(name).peak("float32")


def test_upcast_products_run_outside_the_matrix_unit() -> None:
    assert not uses_matrix_unit("bfloat16", chip("V100-SXM-16GB"))
    assert uses_matrix_unit("float16", chip("V100-SXM-16GB"))
    assert uses_matrix_unit("float8_e5m2", chip("H100-SXM"))
    assert not uses_matrix_unit("float32", chip("H100-SXM"))
    assert uses_matrix_unit("tf32", chip("H100-SXM"))


def test_float32_goes_through_bfloat16_where_that_is_all_there_is() -> None:
    assert peak_of("float32", chip("TPU-v4")) == chip("TPU-v4").peak("bfloat16")


def test_graphics_chips_have_few_float64_units() -> None:
    single = chip("RTX-4090").peak_flop_per_s("float32")
    assert peak_of("float64", chip("RTX-4090")).flop_per_s == single / 64
    assert vector_peak_flop_per_s("float64", chip("RTX-4090")) == single / 64


def test_complex_numbers_are_counted_in_real_flops() -> None:
    assert peak_of("complex64", chip("H100-SXM")) == chip("H100-SXM").peak("float32")


def test_half_precision_elements_are_computed_in_float32() -> None:
    expected = chip("H100-SXM").peak_flop_per_s("float32")
    assert vector_peak_flop_per_s("bfloat16", chip("H100-SXM")) == expected
    assert vector_peak_flop_per_s("int64", chip("H100-SXM")) == expected


def test_no_chip_reaches_more_than_it_promises() -> None:
    for one in known_chips():
        assert bandwidth_bytes_per_s(one) <= one.memory_bandwidth_bytes_per_s
        for dtype, peak in one.peaks.items():
            assert achieved_flop_per_s(dtype, one) <= peak.flop_per_s


def test_a_chip_without_any_rate_of_products_is_an_error() -> None:
    with pytest.raises(Exception, match="no peak for bfloat16"):
        peak_of("bfloat16", toy(peaks=MappingProxyType({"int8": Peak(1.0, "toy")})))
