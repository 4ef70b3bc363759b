"""Every public function of `napkin` keeps its laws on random numbers, and none is without one."""

import inspect
import math
from importlib import import_module
from pkgutil import walk_packages
from types import FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchtally.plan
from tests.plan.dimensions import check_units
from tests.plan.lawbook import LAWS, LOOKED_UP
from tests.plan.laws import Law, either, falls, quantities, real, rises, whole
from torchtally.plan.quantity import Quantity, derived, of
from torchtally.units import Unit

READERS = "torchtally.plan.architecture."
"""Files in, types out: no quantity. Their property tests are in test_config.py, test_checkpoint.py
and test_weights.py."""


def public_functions() -> set[FunctionType]:
    """Those that a module of `napkin` defines at its top, and does not keep to itself."""
    return {
        var
        for info in walk_packages(torchtally.plan.__path__, "torchtally.plan.")
        if not info.name.startswith(READERS)
        for name, var in vars(import_module(info.name)).items()
        if inspect.isfunction(var) and var.__module__ == info.name and not name.startswith("_")
    }


def named(function: FunctionType) -> str:
    return f"{function.__module__.removeprefix('torchtally.plan.')}.{function.__name__}"


def without_law(functions: set[FunctionType]) -> set[str]:
    known = {named(law.function) for law in LAWS} | {named(function) for function in LOOKED_UP}
    return {named(function) for function in functions} - known


def test_every_public_function_has_a_law() -> None:
    assert without_law(public_functions()) == set()


def test_one_without_a_law_is_found() -> None:
    def stranger() -> None: ...

    stranger.__module__ = "torchtally.plan.training"
    assert without_law({stranger}) == {"training.stranger"}


def check(law: Law, arguments: dict[str, Any], more: dict[str, Any]) -> None:
    """The law on these arguments, and with each of them exchanged for another value."""
    found = law.function(**arguments)
    amount = law.result(found)
    assert amount.unit is law.unit
    for quantity in quantities(found):
        check_units(quantity)
        for step in quantity.working():
            assert 0 <= step.value < math.inf, step
            assert isinstance(step.value, int) or not step.unit.is_whole, step
    for name, argument in law.arguments.items():
        if argument.direction:
            other = law.result(law.function(**{**arguments, name: more[name]})).value
            low, high = sorted(((arguments[name], amount.value), (more[name], other)))
            if argument.direction < 0:
                low, high = high, low
            assert low[1] <= high[1] * (1 + 1e-9) + 1e-12, f"{name}: {arguments} {more[name]}"


@pytest.mark.parametrize("law", LAWS, ids=lambda law: named(law.function))
def test_law(law: Law) -> None:
    drawn = st.fixed_dictionaries(
        {name: argument.values for name, argument in law.arguments.items()}
    )

    @settings(
        max_examples=law.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(drawn, drawn)
    def on_random_numbers(arguments: dict[str, Any], more: dict[str, Any]) -> None:
        check(law, arguments, more)

    on_random_numbers()


def backwards(speed: float) -> Quantity:
    return derived("time", Unit.SECONDS, "1 * time", time=of(speed, Unit.SECONDS))


def wrong_unit(speed: float) -> Quantity:
    return derived("size", Unit.BYTES, "2 * time", time=of(speed, Unit.SECONDS))


@pytest.mark.parametrize(
    "law",
    [
        Law(backwards, Unit.SECONDS, {"speed": falls(real(1, 2))}),
        Law(backwards, Unit.BYTES, {"speed": rises(real(1, 2))}),
        Law(wrong_unit, Unit.BYTES, {"speed": either(real(1, 2))}),
    ],
    ids=["direction", "unit of the result", "unit of a formula"],
)
def test_a_broken_law_is_found(law: Law) -> None:
    with pytest.raises(AssertionError):
        check(law, {"speed": 1.0}, {"speed": 2.0})


@pytest.mark.parametrize("bits", range(60))
def test_whole_numbers_are_drawn_within_their_bounds(bits: int) -> None:
    @settings(max_examples=3, deadline=None)
    @given(whole(1 + bits, (1 << 60) + bits))
    def within(number: int) -> None:
        assert 1 + bits <= number <= (1 << 60) + bits

    within()
