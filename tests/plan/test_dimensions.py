"""The units' checker finds what is wrong, and nothing else."""

import pytest

from tests.plan.dimensions import MixedUnitsError, check_units
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.units import Unit

BYTES, SECONDS = of(10, Unit.BYTES), of(2.0, Unit.SECONDS)
FLOPS, RATE = of(100, Unit.FLOPS), of(5.0, Unit.FLOP_PER_S)


@pytest.mark.parametrize(
    ("unit", "formula"),
    [
        (Unit.SECONDS, "flops / rate"),
        (Unit.FLOP_PER_S, "flops / seconds"),
        (Unit.BYTE_PER_S, "size / seconds"),
        (Unit.BYTES, "max(size, 2 * size) + ceil(3 * size)"),
        (Unit.SECONDS, "(seconds * seconds)**0.5 + flops / rate"),
        (Unit.NUMBER, "flops * flops**0.3"),
        (Unit.BYTES, "0"),
    ],
)
def test_right_ones_pass(unit: Unit, formula: str) -> None:
    check_units(step(unit, formula))


@pytest.mark.parametrize(
    ("unit", "formula"),
    [
        (Unit.SECONDS, "flops * rate"),
        (Unit.SECONDS, "flops + seconds"),
        (Unit.BYTES, "max(size, seconds)"),
        (Unit.BYTES, "size * size"),
        (Unit.FLOPS, "size"),
        (Unit.NUMBER, "log2(size)"),
        (Unit.NUMBER, "flops**size"),
    ],
)
def test_wrong_ones_do_not(unit: Unit, formula: str) -> None:
    with pytest.raises(MixedUnitsError):
        check_units(step(unit, formula))


def test_a_mistake_deep_in_the_working_is_found() -> None:
    inner = step(Unit.SECONDS, "flops * rate")
    with pytest.raises(MixedUnitsError, match="inner"):
        check_units(derive("outer", Unit.SECONDS, "2 * inner", inner=inner))


def step(unit: Unit, formula: str) -> Quantity:
    return derive("inner", unit, formula, size=BYTES, seconds=SECONDS, flops=FLOPS, rate=RATE)
