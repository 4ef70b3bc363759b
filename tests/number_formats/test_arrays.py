"""Arrays are rounded as single numbers are, and as torch's dtypes do; losses are counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from torchtally.errors import UsageError
from torchtally.number_formats import (
    FORMATS,
    FloatLayout,
    NumberFormat,
    RoundingOutcome,
    choose_formats,
    convert,
    real_of,
)
from torchtally.number_formats.arrays import power_to_largest, round_blocks, round_to_layout
from torchtally.number_formats.losses import ScaleKind, together, usual_scale
from torchtally.number_formats.statistics import tensor_statistics

FLOATS = [row for row in FORMATS.values() if isinstance(row.layout, FloatLayout)]
OVER = (RoundingOutcome.OVERFLOW, RoundingOutcome.SATURATED)
TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8_e5m2": torch.float8_e5m2,
         "fp8_e4m3": torch.float8_e4m3fn}  # fmt: skip


def numbers_of(seed: int, count: int = 96) -> NDArray[np.float32]:
    """Of magnitudes that reach beyond fp16 at both ends, with zeros, and without inf and NaN."""
    generator = np.random.default_rng(seed)
    magnitudes = np.exp2(generator.uniform(-30, 18, count))
    numbers = generator.choice([-1, 1, 1, 0], count) * magnitudes
    return numbers.astype(np.float32)


def layout_of(row: NumberFormat) -> FloatLayout:
    assert isinstance(row.layout, FloatLayout)
    return row.layout


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
@given(seed=st.integers(0, 10**6))
def test_an_array_becomes_what_its_numbers_become(row: NumberFormat, seed: int) -> None:
    numbers = numbers_of(seed).astype(np.float64)
    if row.blocks is None:
        rounded = round_to_layout(numbers, layout_of(row))
    else:
        largest = float(np.abs(numbers).max())
        rounded = round_blocks(numbers[None], layout_of(row), row.blocks, largest)
    held = convert(row, [real_of(float(number)) for number in numbers])
    assert rounded.values.ravel().tolist() == [each.value for each in held]
    assert rounded.has_overflowed.ravel().tolist() == [each.outcome in OVER for each in held]


@pytest.mark.parametrize("name", TORCH)
def test_an_array_becomes_what_torch_makes_of_it(name: str) -> None:
    numbers = numbers_of(1, 20_000)
    theirs = torch.from_numpy(numbers).to(TORCH[name]).double().numpy()
    rounded = round_to_layout(numbers.astype(np.float64), layout_of(FORMATS[name]))
    same = rounded.values == theirs
    if name == "fp8_e4m3":  # too large: NaN before PyTorch 2.13
        same |= rounded.has_overflowed & np.isnan(theirs)
    assert same.all()


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_losses_are_those_counted_one_by_one(row: NumberFormat) -> None:
    numbers = numbers_of(2, 200)
    statistics = tensor_statistics("w", "float32", lambda: [numbers], [row])
    scale = ScaleKind.NONE if row.blocks is None else ScaleKind.BLOCK
    loss = statistics.loss(row.name, scale)
    held = convert(row, [real_of(float(number)) for number in numbers])
    pairs = [(number, each) for number, each in zip(numbers, held, strict=True) if number]
    assert loss.overflows == sum(each.outcome in OVER for _, each in pairs)
    assert loss.underflows == sum(each.value == 0 for _, each in pairs)
    kept = [pair for pair in pairs if pair[1].value and pair[1].outcome not in OVER]
    assert loss.rounded == sum(each.value != float(number) for number, each in kept)
    least = float(layout_of(row).smallest_normal)
    assert loss.subnormals == sum(
        0 < abs(each.value) < least * (each.scale or 1.0) for _, each in pairs
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_exponents_are_those_of_numpy(dtype: str) -> None:
    numbers = np.random.default_rng(0).standard_normal((50, 40)).astype(dtype)
    statistics = tensor_statistics("w", dtype, lambda: [numbers], FLOATS[:1])
    magnitudes = np.abs(numbers.astype(np.float64))
    edges = np.exp2(np.arange(-30.0, 5.0))
    counts, _ = np.histogram(magnitudes, bins=edges)
    expected = {n - 30: int(count) for n, count in enumerate(counts) if count}
    assert statistics.exponents == expected
    assert (statistics.largest, statistics.smallest) == (magnitudes.max(), magnitudes.min())


def test_what_a_format_loses_by_hand() -> None:
    """fp16: 2**-25 is half its smallest number, 65520 beyond its largest, 2**-20 subnormal, 0.1
    rounded. Halved, 32760 is rounded to a multiple of 16.
    """
    numbers = np.array([2.0**-25, 65520, 2.0**-20, 0.1, 0, 1, np.inf, np.nan])
    statistics = tensor_statistics("w", "float64", lambda: [numbers], choose_formats(["fp16"]))
    assert (statistics.numbers, statistics.zeros, statistics.nonfinite) == (5, 1, 2)
    loss = statistics.loss("fp16", ScaleKind.NONE)
    assert (loss.underflows, loss.overflows, loss.subnormals, loss.rounded) == (1, 1, 1, 1)
    assert statistics.lost(loss) == 2 / 5
    loss = statistics.loss("fp16", ScaleKind.TENSOR)
    assert (loss.underflows, loss.overflows, loss.subnormals, loss.rounded) == (1, 0, 1, 2)


@pytest.mark.parametrize(("largest", "power"), [(448, 0), (449, -1), (224, 1), (1, 8), (0, 0)])
def test_the_power_of_two_below_the_largest_number(largest: float, power: int) -> None:
    layout = layout_of(FORMATS["fp8_e4m3"])
    assert power_to_largest(largest, layout) == power


def test_parts_are_counted_as_one() -> None:
    """Blocks and scales are those of the whole tensor however it is read."""
    numbers = numbers_of(3, 32 * 40).reshape(40, 32)
    rows = choose_formats(["fp8_e4m3", "mxfp4", "nvfp4"])
    whole = tensor_statistics("w", "float32", lambda: [numbers], rows)
    parts = tensor_statistics("w", "float32", lambda: [numbers[:7], numbers[7:]], rows)
    assert parts.squares == pytest.approx(whole.squares, rel=1e-12)  # added in another order
    assert replace(parts, squares=whole.squares) == whole
    both = together("all", [whole, parts], rows)
    assert both.elements == 2 * whole.elements
    assert both.losses[0].underflows == 2 * whole.losses[0].underflows


def test_nan_in_a_block_takes_its_neighbours() -> None:
    numbers = np.ones((1, 64))
    numbers[0, 3] = np.nan
    rows = choose_formats(["mxfp8_e4m3", "nvfp4"])
    statistics = tensor_statistics("w", "float64", lambda: [numbers], rows)
    assert [loss.overflows for loss in statistics.losses] == [31, 63]


def test_integers_have_no_exponents() -> None:
    with pytest.raises(UsageError, match="int8 holds integers"):
        tensor_statistics("w", "float32", list, choose_formats(["int8"]))


def test_scales_as_formats_are_used() -> None:
    used = {row.name: usual_scale(row) for row in choose_formats(["bf16", "e4m3", "nvfp4"])}
    assert list(used.values()) == [ScaleKind.NONE, ScaleKind.TENSOR, ScaleKind.BLOCK]
