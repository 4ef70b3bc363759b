"""Laws of the data-sheet model, over random calls and every chip of the table."""

from collections.abc import Callable

import pytest
from hypothesis import example
from hypothesis import given as forall
from hypothesis import strategies as st

from benchmarks.published_times import independent, median_error, published
from tests.builders import unknown_call
from tests.timing.roofline.chips import add, bmm, kernel_of, mm
from tests.work.calls import call, cost, given, spec
from torchtally.chips import Chip, chip, known_chips
from torchtally.errors import UsageError
from torchtally.timing.constants import CACHED_TIMES
from torchtally.timing.roofline.datasheet import datasheet_kernel
from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.rates import UPCAST
from torchtally.trace import Call
from torchtally.work import Kind, cost_of

CHIPS = st.sampled_from([one for one in known_chips() if {"float16", "bfloat16"} & set(one.peaks)])
DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn")
SIZES = st.integers(1, 512).map(lambda size: 16 * size)
"""Multiples of 16: rows of every dtype are aligned, and still are when a size is doubled."""


def is_faster_than_promised(kernel: Kernel, flops: float, promised_flop_per_s: float) -> bool:
    return kernel.seconds * (1 + 1e-9) < flops / promised_flop_per_s


def promised(one: Chip, dtype: str) -> float:
    """The peak of the dtype, or infinity where the chip promises none."""
    peak = one.peaks.get(dtype)
    return peak.flop_per_s if peak else float("inf")


def test_the_law_catches_a_kernel_that_is_too_fast() -> None:
    assert is_faster_than_promised(Kernel(0.9, Bound.COMPUTE), 10.0, 10.0)
    assert not is_faster_than_promised(Kernel(1.0, Bound.COMPUTE), 10.0, 10.0)


@forall(CHIPS, st.sampled_from(DTYPES), st.integers(1, 64), SIZES, SIZES, SIZES)
def test_no_product_is_faster_than_promised(
    on: Chip, dtype: str, batch: int, rows: int, terms: int, columns: int
) -> None:
    one = bmm(batch, rows, terms, columns, dtype)
    assert not is_faster_than_promised(kernel_of(one, on), cost(one).flops, promised(on, dtype))


@forall(CHIPS, st.sampled_from(DTYPES), SIZES, SIZES, SIZES)
def test_twice_the_rows_columns_or_terms_never_take_less(
    on: Chip, dtype: str, rows: int, terms: int, columns: int
) -> None:
    once = kernel_of(mm(rows, terms, columns, dtype), on).seconds
    for larger in ((2, 1, 1), (1, 2, 1), (1, 1, 2)):
        dims = [size * factor for size, factor in zip((rows, terms, columns), larger, strict=True)]
        assert kernel_of(mm(*dims, dtype), on).seconds >= once * (1 - 1e-9)


def attention(kernel: str, heads: int, tokens: int, head: int, *, causal: bool, way: str) -> Call:
    names = ("query", "key", "value")
    inputs = [given(name, 1, heads, tokens, head, dtype="float16") for name in names]
    out = spec(1, heads, tokens, head, dtype="float16")
    grad = [given("grad_out", 1, heads, tokens, head, dtype="float16")]
    name = f"aten._scaled_dot_product_{kernel}_attention{way}"
    return call(name, [*(grad if way else []), *inputs], out, is_causal=causal)


@forall(
    CHIPS,
    st.sampled_from(["flash", "efficient", "cudnn"]),
    st.integers(1, 256),
    st.integers(1, 8192),
    st.integers(1, 256),
    st.booleans(),
    st.sampled_from(["", "_backward"]),
)
def test_no_attention_is_faster_than_promised_and_twice_the_tokens_never_take_less(
    on: Chip, kernel: str, heads: int, tokens: int, head: int, causal: bool, way: str
) -> None:
    one = attention(kernel, heads, tokens, head, causal=causal, way=way)
    computed = cost(one).flops * (0.5 if causal else 1.0)
    actual = kernel_of(one, on)
    assert not is_faster_than_promised(actual, computed, promised(on, "float16"))
    twice = attention(kernel, heads, 2 * tokens, head, causal=causal, way=way)
    assert kernel_of(twice, on).seconds >= actual.seconds * (1 - 1e-9)
    assert kernel_of(
        attention(kernel, 2 * heads, tokens, head, causal=causal, way=way), on
    ).seconds >= actual.seconds * (1 - 1e-9)


@forall(CHIPS, st.sampled_from(["float16", "float32", "float64", "int64"]), st.integers(0, 10**9))
@example(known_chips()[0], "float32", 0)
def test_twice_the_elements_never_take_less(on: Chip, dtype: str, elements: int) -> None:
    once, twice = (kernel_of(add(n, dtype), on) for n in (elements, 2 * elements))
    assert 0 <= once.seconds <= twice.seconds
    moved = 3 * add(elements, dtype).inputs[0].bytes
    assert once.seconds >= moved / on.memory_bandwidth_bytes_per_s / CACHED_TIMES


def convolution(channels: int, out: int, size: int, dtype: str) -> Call:
    inputs = [
        given("input", 4, channels, size, size, dtype=dtype),
        given("weight", out, channels, 3, 3, dtype=dtype),
    ]
    return call("aten.convolution", inputs, spec(4, out, size, size, dtype=dtype), groups=1)


@forall(CHIPS, st.sampled_from(DTYPES[:3]), st.integers(1, 512), st.integers(1, 512), SIZES)
def test_no_convolution_is_faster_than_promised(
    on: Chip, dtype: str, channels: int, out: int, size: int
) -> None:
    one = convolution(channels, out, size // 16, dtype)
    assert not is_faster_than_promised(kernel_of(one, on), cost(one).flops, promised(on, dtype))


@forall(CHIPS, st.integers(1, 64), st.integers(1, 64), SIZES)
def test_no_recurrent_network_is_faster_than_promised(
    on: Chip, steps: int, sequences: int, hidden: int
) -> None:
    inputs = [
        given("input", steps, sequences, hidden, dtype="float16"),
        given("weight", 4 * hidden, hidden, dtype="float16"),
        given("weight", 4 * hidden, hidden, dtype="float16"),
    ]
    out = spec(steps, sequences, hidden, dtype="float16")
    one = call("aten._cudnn_rnn", inputs, out, weight_stride0=2)
    assert not is_faster_than_promised(kernel_of(one, on), cost(one).flops, promised(on, "float16"))


def test_views_metadata_and_the_uncounted_take_nothing() -> None:
    view = call("aten.view", [given("self", 8)], (8,))
    calls: list[Callable[[], Call]] = [
        lambda: Call(view.name, "", view.inputs, (view.inputs[0],)),
        lambda: call("aten.empty", [], (4,)),
        unknown_call,
    ]
    kinds = set()
    for make in calls:
        one = make()
        kind, spent = cost_of(one)
        kinds.add(kind)
        for on in known_chips():
            assert datasheet_kernel(one, kind, spent, on) == Kernel(0.0, Bound.OVERHEAD)
    assert kinds == {Kind.VIEW, Kind.METADATA, Kind.UNCOUNTED}


def test_published_times_are_met_within_the_limit() -> None:
    # The median error over every row that gave the model no constant: at most 30 %.
    rows = independent(published())
    assert len(rows) >= 15
    assert len({row.chip for row in rows}) >= 3
    assert median_error(rows) <= 0.30


def test_no_published_product_is_predicted_faster_than_promised() -> None:
    products = [row for row in published() if row.family == "product"]
    assert len(products) > 50
    for row in products:
        (one,) = row.calls
        dtype = "tf32" if one.literal("allow_tf32") else one.inputs[0].dtype
        kernel = Kernel(row.predicted_s, Bound.COMPUTE)
        assert not is_faster_than_promised(kernel, cost(one).flops, promised(chip(row.chip), dtype))


def test_a_wrong_prediction_would_be_noticed() -> None:
    rows = independent(published())

    class Twice:
        def __init__(self, ratio: float) -> None:
            self.ratio = ratio

    assert median_error([Twice(2 * row.ratio) for row in rows]) > 0.30  # type: ignore[list-item]


@pytest.mark.parametrize("on", known_chips(), ids=lambda on: on.name)
def test_every_chip_takes_a_time_for_the_usual_operators(on: Chip) -> None:
    products = (mm(64, 64, 64, "bfloat16"), mm(64, 64, 64, "float32"))
    assert kernel_of(add(1024), on).seconds > 0
    for one in products:
        if on.peaks.keys() & set(UPCAST):
            assert kernel_of(one, on).seconds > 0
        else:
            with pytest.raises(UsageError, match="has no peak"):
                kernel_of(one, on)
