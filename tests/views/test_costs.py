"""Money and energy of each row, by sums on paper."""

from dataclasses import replace

import pytest
from msgspec import structs

from tests.builders import TraceBuilder, mm_call
from tests.views.test_money import on, step
from torchtally.chips import chip
from torchtally.ledger import account
from torchtally.report.formats import render
from torchtally.report.report import Look, table_report
from torchtally.table import Table
from torchtally.timing.roofline import Roofline
from torchtally.views import VIEWS, by
from torchtally.views.money import Extent, Until, money, own_price
from torchtally.views.summary import summarise


def text_of(table: Table, columns: tuple[str, ...] = ()) -> str:
    shown = table.only(columns) if columns else table
    return " ".join(render(table_report(shown), "text", Look(width=200)).split())


def test_an_hour_for_36_dollars_is_a_cent_a_second() -> None:
    table = by(step(seconds=2.0), "phase", own_price=own_price(36.0))
    assert table.column("cost_usd") == (pytest.approx(0.02),)
    assert table.total("cost_usd") == pytest.approx(0.02)


def test_costs_sum_to_those_of_the_step_in_every_view_with_times() -> None:
    ledger = step(seconds=3.0, kernel_s=1.5)
    bill = money(ledger, Until(1, Extent.STEPS))
    for name in VIEWS:
        table = by(ledger, name)
        names = [column.name for column in table.columns]
        if "seconds" not in names or table.total("seconds") is None:
            continue
        share = table.total("seconds") / 3.0
        for column in ("cost_usd", "energy_joules"):
            assert table.total(column) == pytest.approx(bill.column(column)[0] * share), name
            assert sum(table.column(column)) == pytest.approx(table.total(column)), name


def test_all_gpus_of_a_run_are_paid() -> None:
    ledger = step()
    world = structs.replace(ledger.trace.world, size=8)
    many = replace(ledger, trace=structs.replace(ledger.trace, world=world))
    alone = by(ledger, "line").total("cost_usd")
    assert by(many, "line").total("cost_usd") == pytest.approx(8 * alone)


def test_a_price_that_nobody_knows_is_no_zero() -> None:
    ledger = on(step(), Roofline(replace(chip("H100-SXM"), price=None, tdp_watts=None)))
    table = by(ledger, "line")
    for column in ("cost_usd", "energy_joules"):
        assert set(table.column(column)) == {None}
        assert table.total(column) is None
    text = text_of(table, ("seconds", "cost", "energy"))
    assert "Cost unknown: no source gives the price of its GPU; give yours with --price." in text
    assert "Energy unknown: no source gives the power of its GPU." in text


def test_readers_see_costs_where_they_ask() -> None:
    table = by(step(), "line")
    assert "cost" not in text_of(table)
    assert "median of" in text_of(table, ("seconds", "cost"))
    builder = TraceBuilder()
    weight = builder.allocate(256 * 256 * 2)
    for _ in range(2):
        builder.run(mm_call(256, 256, 256, "bfloat16"), (weight, weight))
        builder.end_step()
    ledger = account(builder.build(), roofline=Roofline(chip("H100-SXM")))
    phases = summarise(ledger).with_columns(("cost",)).phases
    assert phases.columns[0].name == "cost_usd"
