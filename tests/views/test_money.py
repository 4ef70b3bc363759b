"""What a training costs, by sums on paper and by laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import TraceBuilder, mm_call, unknown_call
from torchtally.chips import Offer, Price, chip
from torchtally.chips.power import IDLE_SHARE_OF_POWER, mean_power_watts
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.prose import in_words
from torchtally.timing.roofline import Bound, Roofline
from torchtally.timing.slots import Slot
from torchtally.views.money import (
    Extent,
    Training,
    Until,
    bill,
    busy_share,
    money,
    own_price,
    training,
    why_no_time,
)

HOUR = 3600.0
AMOUNTS = st.floats(0, 1e9)
SHARES = st.floats(0, 1)


def step(seconds: float = 2.0, kernel_s: float = 1.0, gpu: str = "H100-SXM") -> Ledger:
    """A ledger whose steady-state step takes so long, the second of two of one product each."""
    builder = TraceBuilder(chip=gpu)
    for _ in range(2):
        builder.run(mm_call(256, 256, 256, "bfloat16"), (0, 0), outputs=[])
        builder.end_step()
    ledger = account(builder.build(), roofline=Roofline(chip(gpu)))
    slots = (Slot(seconds, kernel_s, Bound.COMPUTE, False),) * len(ledger.entries)
    total = replace(ledger.total, seconds=seconds, kernel_s=kernel_s)
    return replace(ledger, times=replace(ledger.times, slots=slots), total=total)


def on(ledger: Ledger, roofline: Roofline | None) -> Ledger:
    """The same times, said to be those of another chip."""
    return replace(ledger, times=replace(ledger.times, roofline=roofline))


# Sums on paper ---------------------------------------------------------------------------------


def test_a_thousand_steps_of_3_6_seconds_are_an_hour() -> None:
    assert own_price(2.49).cost_usd(3.6 * 1000) == pytest.approx(2.49)


def test_a_device_always_at_work_takes_its_rated_power() -> None:
    assert mean_power_watts(700, 1.0) == pytest.approx(700)
    assert mean_power_watts(700, 0.0) == pytest.approx(IDLE_SHARE_OF_POWER * 700)


def test_the_idle_share_is_the_median_of_what_was_read_off() -> None:
    assert sorted((53 / 300, 145 / 700, 110 / 300))[1] == pytest.approx(
        IDLE_SHARE_OF_POWER, abs=0.005
    )


def test_lengths() -> None:
    assert training(Until(600, Extent.STEPS), 2.0, None) == Training(600, 1200.0)
    assert training(Until(7.0, Extent.SECONDS), 2.0, None) == Training(3, 7.0)
    assert training(Until(1001, Extent.TOKENS), 2.0, 100) == Training(11, 22.0)


def test_tokens_of_steps_that_do_not_tell() -> None:
    with pytest.raises(UsageError, match=r"tokens per step .* --until 600000"):
        training(Until(1e9, Extent.TOKENS), 2.0, None)


def test_the_table_of_1800_steps_of_two_seconds() -> None:
    """An hour, half of it at work, at 700 W."""
    table = money(step(), Until(1800, Extent.STEPS), own_price=own_price(2.5))
    (row,) = (
        dict(zip((column.name for column in table.columns), row, strict=True)) for row in table.rows
    )
    watts = 700 * (IDLE_SHARE_OF_POWER + (1 - IDLE_SHARE_OF_POWER) / 2)
    assert row["seconds"] == 3600
    assert row["gpu_hours"] == 1
    assert row["cost_usd"] == row["usd_per_hour"] == 2.5
    assert row["price_source"] == row["price_as_of"] == "yours"
    assert row["steps"] == 1800
    assert row["energy_joules"] == pytest.approx(3600 * watts)
    assert "missing" not in row
    assert "Energy is estimated" in in_words(table.note)
    assert "Price of the GPU's time alone: yours." in in_words(table.note)


def test_time_that_is_not_filled_is_paid_too() -> None:
    charge = bill(step(2.0), Until(3.0, Extent.SECONDS), own_price(3600.0), None)
    assert charge.training == Training(1, 3.0)
    assert charge.cost_usd == pytest.approx(3.0)


def test_the_price_of_the_table_has_its_source_and_date() -> None:
    price = chip("H100-SXM").price
    assert price is not None
    table = money(step(), Until(1800, Extent.STEPS))
    assert table.column("cost_usd") == (price.usd_per_hour,)
    assert table.column("price_as_of") == (price.as_of,)
    assert price.note in in_words(table.note)


def test_a_price_is_the_median_of_its_offers() -> None:
    days = ("2026-06", "2026-02", "2026-05-22", "2026-03")
    dollars = (1.0, 9.0, 4.0, 2.0)
    offers = tuple(Offer(usd, f"shop {usd}", day) for usd, day in zip(dollars, days, strict=True))
    price = Price(offers)
    assert (price.lowest, price.usd_per_hour, price.highest) == (1.0, 3.0, 9.0)  # (2 + 4) / 2
    assert price.as_of == "2026-02"
    assert price.note == "median of 4 offers of 2026, $1.00 to $9.00/h"
    assert Price(offers[:3]).usd_per_hour == 4.0
    assert Price(offers[:1]).note == "one offer of 2026-06, not the market"


# What is not known -----------------------------------------------------------------------------


def test_a_chip_without_a_price_says_so() -> None:
    assert chip("RTX-5090").price is None
    table = money(step(gpu="RTX-5090"), Until(10, Extent.STEPS))
    assert table.column("cost_usd") == table.column("usd_per_hour") == (None,)
    assert table.column("seconds") == (20.0,)
    remark = "RTX-5090: price unknown: no source gives one; give yours with --price."
    assert remark in in_words(table.note)


def test_a_chip_without_rated_power_has_no_energy() -> None:
    ledger = step()
    bare = replace(chip("H100-SXM"), tdp_watts=None)
    table = money(on(ledger, Roofline(bare)), Until(10, Extent.STEPS))
    assert table.column("energy_joules") == (None,)
    assert "energy unknown: no source gives its power" in in_words(table.note)
    assert "estimated" not in in_words(table.note)


def test_without_a_roofline_nothing_is_known() -> None:
    ledger = on(step(), None)
    table = money(ledger, Until(10, Extent.STEPS))
    assert table.column("seconds") == table.column("cost_usd") == (None,)
    assert "no time: H100-SXM is not in the chip table" in in_words(table.note)


def test_a_step_with_a_part_that_is_not_timed_has_no_time() -> None:
    slow = replace(chip("H100-SXM"), peaks={})
    builder = TraceBuilder()
    builder.run(mm_call(8, 8, 8), (0, 0), outputs=[])
    builder.end_step()
    ledger = account(builder.build(), roofline=Roofline(slow))
    assert why_no_time(ledger).startswith("no time for aten.mm x 1: ")
    charge = bill(ledger, Until(10, Extent.STEPS), own_price(1.0), None)
    assert [charge.training, charge.cost_usd, charge.energy_joules] == [None] * 3


def test_a_step_in_which_nothing_runs_has_no_time() -> None:
    builder = TraceBuilder()
    builder.run(unknown_call(), (0,), outputs=[])
    builder.end_step()
    ledger = account(builder.build(), roofline=Roofline(chip("H100-SXM")))
    assert why_no_time(ledger) == "no time: the step ran nothing"
    assert busy_share(ledger) == 0
    assert bill(ledger, Until(HOUR, Extent.SECONDS), own_price(1.0), None).training is None


def test_a_run_without_a_step_costs_by_the_hour_only() -> None:
    ledger = step()
    whole = replace(ledger, trace=structs.replace(ledger.trace, step_ends=()))
    assert bill(whole, Until(HOUR, Extent.SECONDS), own_price(2.0), None).cost_usd == 2.0
    assert money(whole, Until(HOUR, Extent.SECONDS)).column("steps") == (None,)
    charge = bill(whole, Until(10, Extent.STEPS), own_price(2.0), None)
    assert charge.cost_usd is None
    assert charge.missing == ("no cost of steps: no training step was completed",)


def test_several_steps_cost_by_the_hour_only() -> None:
    ledger = step()
    period = replace(ledger.reported_period, name="steps 1 to 3", steps=3, step=None)
    several = replace(ledger, reported_period=period)
    by_time = bill(several, Until(HOUR, Extent.SECONDS), own_price(2.0), None)
    assert by_time.cost_usd == 2.0
    assert by_time.training is not None
    assert by_time.training.steps is None
    by_steps = bill(several, Until(10, Extent.STEPS), own_price(2.0), None)
    assert by_steps.cost_usd is None
    assert by_steps.missing == (
        "no cost of steps: this is steps 1 to 3; --step N chooses one, --by step lists them",
    )


def test_one_step_is_no_steady_state() -> None:
    ledger = step()
    whole = replace(ledger, trace=structs.replace(ledger.trace, step_ends=(2,)))
    assert "trace two steps" in in_words(money(whole, Until(10, Extent.STEPS)).note)
    assert "trace two steps" not in in_words(money(ledger, Until(10, Extent.STEPS)).note)


# Laws ------------------------------------------------------------------------------------------


@given(AMOUNTS, AMOUNTS, st.floats(0, 100))
def test_costs_add(seconds: float, more: float, usd_per_hour: float) -> None:
    price = own_price(usd_per_hour)
    parts = price.cost_usd(seconds) + price.cost_usd(more)
    assert price.cost_usd(seconds + more) == pytest.approx(parts)
    assert price.cost_usd(0) == 0


@given(SHARES, SHARES, st.floats(1, 2000))
def test_power_grows_with_work_from_idle_to_rated(one: float, two: float, tdp_watts: float) -> None:
    low, high = sorted((one, two))
    idle, rated = IDLE_SHARE_OF_POWER * tdp_watts, tdp_watts * (1 + 1e-9)
    less, more = mean_power_watts(tdp_watts, low), mean_power_watts(tdp_watts, high)
    assert idle <= less <= more <= rated


@given(st.floats(1e-6, 1e3), st.integers(1, 10**9), st.integers(1, 10**9))
def test_longer_trainings_take_more_steps(step_s: float, one: int, two: int) -> None:
    low, high = sorted((one, two))
    for extent in Extent:
        less = training(Until(low, extent), step_s, 1000)
        more = training(Until(high, extent), step_s, 1000)
        assert (less.steps or 0) <= (more.steps or 0)
        assert less.seconds <= more.seconds


def test_prices_are_said_once() -> None:
    offer = Price((Offer(1.0, "A shop", "2026-05", note="two for one"),))
    ledger = on(step(), Roofline(replace(chip("H100-SXM"), price=offer)))
    assert "A shop, one offer as of 2026-05 (two for one)" in in_words(
        money(ledger, Until(1, Extent.STEPS)).note
    )
