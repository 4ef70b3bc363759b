"""Tensors that do not lie alike: whose elements are found one by one, and what that takes."""

import pytest
from msgspec import structs

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import (
    CAST_OPERAND_S,
    CAST_S,
    CAT_SLICES_PER_S,
    GATHER_PLACES_PER_S,
    KERNEL_S,
    PLACES_PER_S,
    TRANSPOSED_PLACES_PER_S,
)
from torchtally.trace import Call, TensorSpec

MEGA = 2**20
FOUND_S = MEGA / (10 * PLACES_PER_S)
"""Of 1024 x 1024 elements on the toy's ten multiprocessors."""


def strided(one: TensorSpec, *steps: int) -> TensorSpec:
    return structs.replace(one, stride=steps)


def seconds(one: Call) -> float:
    return kernel_of(one, toy()).seconds


def test_alike_tensors_take_their_bytes_alone() -> None:
    square = (1024, 1024)
    dense = call("aten.add", [given("self", *square), given("other", *square)], spec(*square))
    assert seconds(dense) == pytest.approx(3 * 4 * MEGA / 1e12 + KERNEL_S)
    permuted = [strided(given(name, *square), 1, 1024) for name in ("self", "other")]
    alike = call("aten.add", permuted, strided(spec(*square), 1, 1024))
    assert seconds(alike) == seconds(dense)


@pytest.mark.parametrize(
    "other",
    [
        strided(given("other", 1024, 1024), 1, 1024),  # a transpose
        strided(given("other", 1024, 1024), 2048, 1),  # a slice
    ],
)
def test_others_are_found_one_by_one(other: TensorSpec) -> None:
    one = call("aten.add", [given("self", 1024, 1024), other], spec(1024, 1024))
    assert seconds(one) == pytest.approx(3 * 4 * MEGA / 1e12 + FOUND_S + KERNEL_S)


def test_so_is_what_broadcasts_but_no_number_of_the_host() -> None:
    row = call("aten.mul", [given("self", 1024, 1024), given("other", 1024)], spec(1024, 1024))
    moved = 4 * (2 * MEGA + 1024)
    assert seconds(row) == pytest.approx(moved / 1e12 + FOUND_S + KERNEL_S)
    number = structs.replace(given("other"), device="cpu")
    scaled = call("aten.mul", [given("self", 1024, 1024), number], spec(1024, 1024))
    assert seconds(scaled) == pytest.approx(2 * 4 * MEGA / 1e12 + KERNEL_S)


def test_dimensions_of_one_element_have_no_stride() -> None:
    inputs = [strided(given("self", 1, 1024, 1024), 7, 1024, 1)]
    one = call("aten.relu", inputs, spec(1, 1024, 1024))
    assert seconds(one) == pytest.approx(2 * 4 * MEGA / 1e12 + KERNEL_S)


def test_cat_of_slices_has_the_slow_kernel() -> None:
    halves = [given("tensors", 1024, 512) for _ in range(2)]
    whole = call("aten.cat", halves, spec(1024, 1024), dim=1)
    assert seconds(whole) == pytest.approx(2 * 4 * MEGA / 1e12 + KERNEL_S)
    slices = call("aten.cat", [strided(half, 1024, 1) for half in halves], spec(1024, 1024), dim=1)
    found_s = MEGA / (10 * CAT_SLICES_PER_S)
    assert seconds(slices) == pytest.approx(2 * 4 * MEGA / 1e12 + found_s + KERNEL_S)
    turned = call("aten.cat", [strided(half, 1, 1024) for half in halves], spec(1024, 1024), dim=1)
    found_s = MEGA / (10 * TRANSPOSED_PLACES_PER_S)
    assert seconds(turned) == pytest.approx(2 * 4 * MEGA / 1e12 + found_s + KERNEL_S)


def test_what_converts_goes_one_by_one_but_into_half_precision() -> None:
    half = given("other", 1024, 1024, dtype="bfloat16")
    mixed = call("aten.add", [given("self", 1024, 1024), half], spec(1024, 1024))
    expected_s = MEGA / 10 * (CAST_S + 3 * CAST_OPERAND_S) + KERNEL_S
    assert seconds(mixed) == pytest.approx(expected_s)
    widened = call("aten._to_copy", [half], spec(1024, 1024))
    expected_s = MEGA / 10 * (CAST_S + 2 * CAST_OPERAND_S) + KERNEL_S
    assert seconds(widened) == pytest.approx(expected_s)
    narrow = spec(1024, 1024, dtype="bfloat16")
    narrowed = call("aten._to_copy", [given("self", 1024, 1024)], narrow)
    assert seconds(narrowed) == pytest.approx(6 * MEGA / 1e12 + KERNEL_S)


# tests/truth/corpus
@pytest.mark.parametrize(
    ("name", "shape", "measured_s"),
    [("copy_", (8192, 50257), 1273e-6), ("copy_", (8192, 768), 19.0e-6),
     ("copy_", (128, 128), 3.14e-6), ("add", (8192, 768), 27.3e-6), ("add", (8192, 1024), 32.3e-6),
     ("add", (8192, 1600), 51.9e-6)],
)  # fmt: skip
def test_conversions_on_an_h100(name: str, shape: tuple[int, ...], measured_s: float) -> None:
    inputs = [given("src", *shape, dtype="bfloat16")]
    inputs += [given("self", *shape)] * (name == "add")
    one = call(f"aten.{name}", inputs, spec(*shape))
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(measured_s, rel=0.15)


# Profiles of owlv2-large on an H100: AMD-AGI/TraceLens
@pytest.mark.parametrize(
    ("shape", "stride", "published_s"),
    [
        ((1, 16, 5185, 64), (5309440, 64, 1024, 1), 13.2e-6),
        ((1, 5185, 16, 64), (5309440, 64, 331840, 1), 15.6e-6),
    ],
)
def test_a_permutation_of_heads_takes_what_a_profile_shows(
    shape: tuple[int, ...], stride: tuple[int, ...], published_s: float
) -> None:
    heads = strided(given("self", *shape, dtype="bfloat16"), *stride)
    one = call("aten.clone", [heads], spec(*shape, dtype="bfloat16"))
    assert kernel_of(one, chip("H100-SXM")).seconds == pytest.approx(published_s, rel=0.2)


def test_rows_are_gathered_by_vectors_where_they_begin_on_16_bytes() -> None:
    """Of 4 bytes each: rows of 1024 and of 1023, of which half lie off."""

    def gathered(columns: int) -> float:
        table, places = given("weight", 4096, columns), given("indices", 1024, dtype="int64")
        return seconds(call("aten.embedding", [table, places], spec(1024, columns)))

    one_by_one_s = 1023 * 1024 / (10 * GATHER_PLACES_PER_S)
    assert gathered(1023) - gathered(1024) == pytest.approx(one_by_one_s, rel=0.01)
