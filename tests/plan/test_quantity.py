"""A quantity's formula is what is computed, and its working is complete."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.plan.quantity import Quantity, derive, of, total, without_working
from torchtally.units import Unit

WIDTH, HEIGHT = of(3, Unit.NUMBER), of(4, Unit.NUMBER)
AREA = derive("area", Unit.NUMBER, "width * height", "Euclid", width=WIDTH, height=HEIGHT)


def test_the_formula_is_computed() -> None:
    assert AREA.value == 12
    assert AREA.source == "Euclid"


def test_a_term_is_called_by_its_word_unless_it_has_a_name() -> None:
    assert [term.name for _, term in AREA.terms] == ["width", "height"]
    other = derive("x", Unit.NUMBER, "a + b_bytes", a=AREA, b_bytes=of(1, Unit.NUMBER))
    assert [term.name for _, term in other.terms] == ["area", "b"]


def test_the_working_is_every_step_once_terms_first() -> None:
    volume = derive(
        "volume", Unit.NUMBER, "area * depth + area", area=AREA, depth=of(2, Unit.NUMBER)
    )
    assert [quantity.name for quantity in volume.working()] == [
        "width",
        "height",
        "area",
        "depth",
        "volume",
    ]
    assert volume.value == 36


def test_whole_units_are_ints() -> None:
    assert of(70e9, Unit.PARAMETERS).value == 70_000_000_000
    third = derive("third", Unit.BYTES, "size / 3", size=of(10, Unit.BYTES))
    assert third.value == 3
    assert isinstance(third.value, int)


def test_large_counts_are_exact() -> None:
    product = derive("p", Unit.FLOPS, "6 * n * d", n=of(70 * 10**9 + 1, Unit.PARAMETERS),
                      d=of(15 * 10**12 + 7, Unit.TOKENS))  # fmt: skip
    assert product.value == 6 * (70 * 10**9 + 1) * (15 * 10**12 + 7)


@pytest.mark.parametrize("amount", [-1, -0.5, math.nan, math.inf])
def test_what_is_no_amount_is_refused(amount: float) -> None:
    with pytest.raises(UsageError, match="tokens cannot be"):
        of(amount, Unit.TOKENS, "tokens")


def test_a_division_by_zero_names_the_zero() -> None:
    with pytest.raises(UsageError, match="time is undefined where chips is 0"):
        derive("time", Unit.SECONDS, "1 / chips", chips=of(0, Unit.CHIPS))


def test_a_result_beyond_floats_is_said() -> None:
    with pytest.raises(UsageError, match="failures without a spare is too large to count"):
        derive("failures without a spare", Unit.NUMBER, "x ** 99", x=of(1e9 + 0.5, Unit.NUMBER))


def test_units_do_not_mix() -> None:
    with pytest.raises(AssertionError, match="in FLOPs, expected FLOP/s"):
        of(of(1, Unit.FLOPS), Unit.FLOP_PER_S)
    with pytest.raises(AssertionError, match="in FLOPs, expected bytes"):
        total("sum", Unit.BYTES, {"a": of(1, Unit.FLOPS)})


def test_a_formula_reaches_nothing_but_its_terms() -> None:
    with pytest.raises(NameError):
        derive("x", Unit.NUMBER, "open('/etc/passwd')")


@given(st.lists(st.integers(0, 10**20), max_size=8))
def test_a_total_is_its_terms_sum(sizes: list[int]) -> None:
    terms = {f"part_{n}": of(size, Unit.BYTES) for n, size in enumerate(sizes)}
    assert total("all", Unit.BYTES, terms).value == sum(sizes)


def test_without_working_the_numbers_are_the_same() -> None:
    def twice() -> Quantity:
        return derive("twice", Unit.COUNT, "2 * each", each=of(3, Unit.COUNT))

    with without_working():
        bare = twice()
    assert bare.value == twice().value == 6
    assert bare.terms == () != twice().terms
    assert not bare.is_given
