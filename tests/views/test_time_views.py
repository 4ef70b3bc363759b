"""Time in the views: all of it adds up, rows come by it, and each says what it waits for."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from msgspec import structs

from tests.builders import (
    NOWHERE,
    TraceBuilder,
    factory_call,
    frame,
    mm_call,
    site,
    spec,
    unknown_call,
)
from tests.strategies import traces
from tests.timing.calibration.machines import H100 as MEASURED
from tests.timing.calibration.machines import HOST
from tests.views.stopwatch import AT_ONCE, DATASHEET, MS, NOBODY_KNOWS, stopwatch
from torchtally.chips import chip
from torchtally.ledger import Ledger, account, line_of
from torchtally.table import Table
from torchtally.timing.calibration import Issue
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.trace import Call, Phase, Trace
from torchtally.units import Unit
from torchtally.views import VIEWS, by
from torchtally.views.bottlenecks import dominant_bounds
from torchtally.views.bounds import NO_TIMES
from torchtally.views.step_time import step_time
from torchtally.views.summary import judge, summarise

pytestmark = pytest.mark.one_case_in(2)

PRODUCT = mm_call(2, 3, 4)
F = 2 * 2 * 3 * 4
TIMED = ("line", "library-line", "module", "repeated-module", "op", "kind", "phase", "bound")
COMPUTE, MEMORY, OVERHEAD = Bound.COMPUTE, Bound.MEMORY, Bound.OVERHEAD


def other(name: str) -> Call:
    """An operator that is counted, and of no FLOPs worth speaking of."""
    return Call(name, "default", PRODUCT.inputs[:1], (spec(2, 3, storage=1),))


RELU, EXP = other("aten.relu"), other("aten.exp")
MIXED = stopwatch(relu=Kernel(3 * MS, MEMORY), exp=Kernel(0.5 * MS, OVERHEAD, is_calibrated=True))
"""Of a product 1 ms of compute, of relu 3 ms of memory, of exp half a millisecond of overhead."""


def model() -> Trace:
    """Two steps. In each, net.0 on line 3 runs a product and a relu, and net.1 on line 4 two
    products; line 5, outside any module, an exp; and a backward product is on line 4.
    """
    builder = TraceBuilder()
    weight = builder.run(factory_call(3, 4))
    first = site(frame(line=3), module="net.0", module_class="Layer")
    second = site(frame(line=4), module="net.1", module_class="Layer")
    for _ in range(2):
        builder.run(PRODUCT, (weight, weight), site=first)
        builder.run(RELU, (weight,), site=first)
        builder.run(PRODUCT, (weight, weight), site=second)
        builder.run(PRODUCT, (weight, weight), site=second)
        builder.run(EXP, (weight,), site=site(frame(line=5)))
        builder.run(PRODUCT, (weight, weight), site=second, phase=Phase.BACKWARD)
        builder.end_step()
    return builder.build()


@pytest.fixture
def ledger() -> Ledger:
    timed = account(model(), roofline=MIXED)
    timed.check()
    return timed


def rows(table: Table, *names: str) -> list[tuple[object, ...]]:
    return list(zip(*map(table.column, names), strict=True))


def ms(table: Table, *names: str) -> list[tuple[object, ...]]:
    """The same, seconds as milliseconds."""
    return [
        tuple(round(value / MS, 6) if isinstance(value, float) else value for value in row)
        for row in rows(table, *names)
    ]


# By hand ---------------------------------------------------------------------------------------


def test_lines_have_their_time_and_what_it_waits_for(ledger: Ledger) -> None:
    table = by(ledger, "line")
    assert ms(table, "line", "seconds", "bound", "flops_forward") == [
        ("train.py:3", 4, "memory", F + 6),
        ("train.py:4", 3, "compute", 2 * F),
        ("train.py:5", 0.5, "overhead", 6),
    ]
    assert table.total("seconds") == pytest.approx(7.5 * MS)
    assert table.column("seconds_share") == pytest.approx((4 / 7.5, 3 / 7.5, 0.5 / 7.5))


def test_rows_come_by_time_and_without_times_by_flops(ledger: Ledger) -> None:
    assert by(ledger, "line").column("line")[0] == "train.py:3"
    assert by(account(model()), "line").column("line")[0] == "train.py:4"
    assert by(ledger, "op").column("operator") == ("aten.mm", "aten.relu", "aten.exp")
    by_flops = by(ledger, "line").sorted_by("flops_forward")
    assert by_flops.column("line")[0] == "train.py:4"
    assert by_flops.sorted_by("seconds").rows == by(ledger, "line").rows


def test_modules_have_their_own_time_and_that_with_the_inner_ones(ledger: Ledger) -> None:
    assert ms(by(ledger, "module"), "module", "seconds", "seconds_with_children") == [
        ("net.0", 4, 4),
        ("net.1", 3, 3),
        ("(outside any module)", 0.5, 0.5),
        ("net", 0, 7),
    ]
    assert ms(by(ledger, "repeated-module"), "module", "seconds", "module_count") == [
        ("net.*", 7, 2),
        ("(outside any module)", 0.5, 1),
    ]


def test_kinds_and_phases_have_their_time(ledger: Ledger) -> None:
    assert ms(by(ledger, "kind"), "kind", "seconds") == [("product", 4), ("elementwise", 3.5)]
    assert ms(by(ledger, "phase"), "phase", "seconds") == [("forward", 6.5), ("backward", 1)]


def test_bounds_have_their_time_and_the_line_that_takes_most_of_it(ledger: Ledger) -> None:
    table = by(ledger, "bound")
    assert ms(table, "bound", "seconds", "count", "line") == [
        ("compute", 4, 4, "train.py:4"),
        ("memory", 3, 1, "train.py:3"),
        ("overhead", 0.5, 1, "train.py:5"),
    ]
    assert table.column("line_share") == pytest.approx((0.75, 1, 1))
    assert table.column("source") == ("line_4()", "line_3()", "line_5()")
    assert table.column("flops") == (4 * F, 6, 6)
    moved = table.column("bytes_moved")
    assert sum(name for name in moved if isinstance(name, int)) == ledger.total.bytes


def test_a_line_waits_for_what_most_of_its_time_goes_into() -> None:
    """Three products at 1 ms each outweigh one relu of 2 ms; two do not."""
    roofline = stopwatch(relu=Kernel(2.5 * MS, MEMORY))
    for products, bound in ((2, MEMORY), (3, COMPUTE)):
        builder = TraceBuilder()
        number = builder.run(factory_call(3, 4))
        builder.end_step()
        for _ in range(products):
            builder.run(PRODUCT, (number, number))
        builder.run(RELU, (number,))
        builder.end_step()
        bounds = dominant_bounds(account(builder.build(), roofline=roofline), line_of)
        assert bounds == {None: bound}


def test_what_takes_no_time_waits_for_nothing() -> None:
    builder = TraceBuilder()
    builder.run(unknown_call(), (builder.run(factory_call(4)),))
    table = by(account(builder.build(), roofline=stopwatch()), "op")
    assert ("mylib.mystery", "") in rows(table, "operator", "bound")


def test_an_operator_whose_time_nobody_knows_is_remarked() -> None:
    timed = account(model(), roofline=stopwatch(relu=NOBODY_KNOWS))
    assert ("aten.relu", "no time") in rows(by(timed, "op"), "operator", "remark")


def test_idle_time_is_apart_from_the_kernels() -> None:
    """The host takes 4 ms to issue each operator of 1 ms: three quarters of the time are idle."""
    slow = structs.replace(AT_ONCE, forward_s=4 * MS, backward_s=4 * MS)
    timed = account(model(), roofline=stopwatch(host=slow))
    timed.check()
    assert ms(by(timed, "line"), "line", "seconds", "kernel_s", "bound")[0] == (
        "train.py:4", 12, 3, "overhead"
    )  # fmt: skip
    time = step_time(timed)
    assert time is not None
    assert time.idle_share == pytest.approx(0.75)
    assert time.overhead_share == pytest.approx(1)
    assert time.is_overhead_bound
    assert time.is_waiting_for_host


# Without times ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", TIMED[:-1])
def test_without_a_roofline_there_are_no_columns_of_time(key: str) -> None:
    untimed, timed = account(model()), account(model(), roofline=MIXED)
    assert not time_columns(by(untimed, key))
    assert {"seconds", "seconds_share", "kernel_s"} <= time_columns(by(timed, key))


def time_columns(table: Table) -> set[str]:
    return {
        column.name
        for column in table.columns
        if column.unit is Unit.SECONDS or column.name in ("seconds_share", "bound", "bytes_moved")
    }


@pytest.mark.parametrize("key", ["bound", "utilisation"])
def test_views_of_time_say_that_there_is_none(key: str) -> None:
    table = by(account(model()), key)
    assert (table.rows, table.note) == ((), NO_TIMES)
    assert step_time(account(model())) is None


def test_the_page_says_why_there_is_no_time() -> None:
    assert (
        "Z9000 is not in the chip table"
        in summarise(account(structs.replace(model(), chip="Z9000"))).no_time
    )
    assert "without a roofline" in summarise(account(model())).no_time
    assert summarise(account(model(), roofline=MIXED)).no_time == ""


# How sure --------------------------------------------------------------------------------------


def test_the_calibrated_part_is_that_of_operators_that_were_measured(ledger: Ledger) -> None:
    measured = replace(ledger.times, roofline=replace(MIXED, calibration=MEASURED))
    time = step_time(replace(ledger, times=measured))
    assert time is not None
    assert time.calibrated_share == pytest.approx(0.5 / 7.5)
    assert time.calibration is MEASURED


def test_shares_are_of_the_step_and_the_largest_first(ledger: Ledger) -> None:
    time = step_time(ledger)
    assert time is not None
    assert [bound for bound, _ in time.shares] == [COMPUTE, MEMORY, OVERHEAD]
    assert sum(share for _, share in time.shares) == pytest.approx(1)
    assert not time.is_overhead_bound


def test_a_cpu_that_was_measured_has_its_memory() -> None:
    host = replace(chip("H100-SXM"), name="CPU", vendor="CPU", compute_capability=None)
    trace = structs.replace(model(), chip="CPU")
    assert judge(account(trace)).fits is None
    verdict = judge(account(trace, roofline=Roofline(host, HOST)))
    assert (verdict.capacity_bytes, verdict.fits) == (host.total_memory_bytes, True)


# Laws ------------------------------------------------------------------------------------------

SLOW_HOST = stopwatch(host=Issue(1e-3, 2e-3, 3e-3, 5e-4, 0.0))


def time_laws_broken(ledger: Ledger, table: Table) -> list[str]:
    """Seconds and kernels sum to the ledger's, shares to one, and the slowest row is the first."""
    total = ledger.total
    broken = []
    for name, whole in (("seconds", total.seconds), ("kernel_s", total.kernel_s)):
        times = [key for key in table.column(name) if isinstance(key, float)]
        if len(times) != len(table.rows):
            broken.append(f"{name} are missing")
        if sum(times) != pytest.approx(whole, rel=1e-9, abs=1e-12):
            broken.append(f"{name} sum to {sum(times)}, not to {whole}")
        if table.rows and table.total(name) != pytest.approx(whole):
            broken.append(f"the total of {name} is {table.total(name)}")
    seconds = list(table.column("seconds"))
    if seconds != sorted(seconds, key=lambda name: -float(name or 0)):
        broken.append("rows are not by time")
    return broken


@pytest.mark.thorough
@pytest.mark.parametrize("roofline", [DATASHEET, SLOW_HOST], ids=["datasheet", "slow host"])
@given(trace=traces())
@settings(deadline=None, max_examples=25)
def test_every_view_has_all_of_the_time(roofline: Roofline, trace: Trace) -> None:
    ledger = account(trace, roofline=roofline)
    for key in TIMED:
        assert time_laws_broken(ledger, by(ledger, key)) == [], key


@given(trace=traces())
@settings(deadline=None, max_examples=40)
def test_every_column_sums_to_its_total_with_times(trace: Trace) -> None:
    ledger = account(trace, roofline=DATASHEET)
    for key in VIEWS:
        table = by(ledger, key)
        for column, total in zip(table.columns, table.totals, strict=True):
            if total is not None:
                summed = sum(float(cell or 0) for cell in table.column(column.name))
                assert summed == pytest.approx(total, rel=1e-9, abs=1e-12), (key, column.name)


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (lambda table: replace(table, rows=table.rows[1:]), "seconds sum to"),
        (lambda table: replace(table, rows=table.rows[::-1]), "rows are not by time"),
        (lambda table: replace(table, totals=(1.0,) * len(table.columns)), "the total of seconds"),
    ],
)
def test_a_view_that_loses_time_is_found(
    ledger: Ledger, spoil: Callable[[Table], Table], broken: str
) -> None:
    table = by(ledger, "line")
    assert time_laws_broken(ledger, table) == []
    assert broken in "; ".join(time_laws_broken(ledger, spoil(table)))


def test_nowhere_has_time_too() -> None:
    builder = TraceBuilder()
    builder.run(PRODUCT, (builder.run(factory_call(3, 4)),) * 2, site=NOWHERE)
    table = by(account(builder.build(), roofline=stopwatch()), "bound")
    assert table.column("line")[0] == "(no line)"
