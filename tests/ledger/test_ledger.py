"""The account of a small trace, by sums in the head; and the laws, which are shown able to fail."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.builders import (
    TraceBuilder,
    attention_call,
    factory_call,
    frame,
    mm_call,
    site,
    spec,
    unknown_call,
)
from tests.strategies import traces
from torchtally.chips import chip
from torchtally.ledger import (
    GROUPINGS,
    ConservationError,
    Ledger,
    Line,
    Path,
    Total,
    Uncounted,
    account,
    sums,
)
from torchtally.timing.roofline import Roofline
from torchtally.trace import Call, Phase, Role, Trace
from torchtally.work import RULES, Cost, Kind, cost_of
from torchtally.work.convention import Convention
from torchtally.work.rule import rule

LAYER = site(frame(line=3), module="net", module_class="Linear")
MM_FLOPS = 2 * 2 * 3 * 4
MM_READ = 4 * (2 * 3 + 3 * 4)
MM_WRITTEN = 4 * 2 * 4


def two_steps() -> Trace:
    """Per step: one product forward, two backward (the same call), one unknown operator."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(3, 4), role=Role.PARAMETER)
    product = mm_call(2, 3, 4)
    for _ in range(2):
        out = builder.run(product, (weight, weight), site=LAYER)
        builder.run(product, (out, weight), site=LAYER, phase=Phase.BACKWARD)
        builder.run(product, (out, weight), site=LAYER, phase=Phase.BACKWARD)
        builder.run(unknown_call(), (out,), phase=Phase.OPTIMIZER)
        builder.end_step()
    return builder.build()


@pytest.fixture
def ledger() -> Ledger:
    return account(two_steps())


def test_totals_are_those_of_the_last_step(ledger: Ledger) -> None:
    assert ledger.period == "steady-state step 2"
    assert ledger.total == Total(
        count=4,
        flops_forward=MM_FLOPS,
        flops_backward=2 * MM_FLOPS,
        flops_matmul=3 * MM_FLOPS,
        bytes_read=3 * MM_READ,
        bytes_written=3 * MM_WRITTEN,
        bytes_allocated=4 * 512,
        bytes_saved=512,
    )
    assert ledger.total.flops == 3 * MM_FLOPS
    assert ledger.total.bytes == 3 * (MM_READ + MM_WRITTEN)


def test_entries_are_those_of_the_whole_run(ledger: Ledger) -> None:
    assert [entry.op.clock for entry in ledger.entries] == list(range(9))
    assert [entry.op.clock for entry in ledger.reported] == [5, 6, 7, 8]


def test_a_run_without_a_step_is_accounted_whole() -> None:
    builder = TraceBuilder()
    builder.run(mm_call(2, 3, 4), (builder.allocate(1), 0))
    whole = account(builder.build())
    assert "no training step" in whole.period
    assert whole.total.flops == MM_FLOPS


def test_an_empty_run_costs_nothing() -> None:
    empty = account(TraceBuilder().build())
    assert empty.total == Total()
    empty.check()


def test_groups(ledger: Ledger) -> None:
    assert {path: total.count for path, total in ledger.by_module().items()} == {
        Path("net", "Linear"): 3,
        Path("", ""): 1,
    }
    assert {line: total.flops for line, total in ledger.by_line().items()} == {
        Line("train.py", 3, "line_3()", True): 3 * MM_FLOPS,
        None: 0,
    }
    assert {op: total.count for op, total in ledger.by_op().items()} == {
        "aten.mm": 3,
        "mylib.mystery": 1,
    }
    assert {phase: total.count for phase, total in ledger.by_phase().items()} == {
        Phase.FORWARD: 1,
        Phase.BACKWARD: 2,
        Phase.OPTIMIZER: 1,
    }


def test_coverage_lists_what_no_rule_counts(ledger: Ledger) -> None:
    assert ledger.coverage.counted == 3
    assert ledger.coverage.free == 0
    assert ledger.coverage.uncounted == (Uncounted("mylib.mystery", 1, "no rule"),)


def test_a_view_is_free() -> None:
    builder = TraceBuilder()
    base = builder.allocate(64)
    view = Call("aten.t", "default", (spec(4, 4, argument="self"),), (spec(4, 4),))
    builder.run(view, (base,), outputs=(base,))
    accounted = account(builder.build())
    assert (accounted.coverage.free, accounted.coverage.counted, accounted.total.bytes) == (1, 0, 0)


def test_the_convention_reaches_the_total() -> None:
    builder = TraceBuilder()
    builder.allocate(1)
    builder.run(attention_call(is_causal=True), (0, 0, 0))
    builder.run(attention_call(is_causal=False), (0, 0, 0))
    trace = builder.build()
    # each: scores of 4 queries and 4 keys over 8, and as much for the values
    assert account(trace).total.flops == 2 * (2 * 4 * 4 * (8 + 8))
    causal = account(trace, convention=Convention.CAUSAL)
    assert causal.total.flops == causal.total.flops_matmul == 1.5 * (2 * 4 * 4 * (8 + 8))
    causal.check()


@pytest.fixture
def broken_rule() -> Iterator[None]:
    def fails(call: Call) -> Cost:
        raise ValueError("not enough values to unpack")

    rule("mylib.broken", kind=Kind.PRODUCT)(fails)
    yield
    del RULES["mylib.broken"]


@pytest.mark.usefixtures("broken_rule")
def test_a_rule_that_fails_leaves_its_operator_uncounted_and_says_so() -> None:
    builder = TraceBuilder()
    builder.run(unknown_call("mylib.broken"), (builder.allocate(1),))
    (missing,) = account(builder.build()).coverage.uncounted
    assert missing.op == "mylib.broken"
    assert missing.reason == "its rule failed: ValueError: not enough values to unpack"


def test_what_recomputation_makes_is_not_saved() -> None:
    builder = TraceBuilder()
    builder.allocate(1, Role.PARAMETER)
    again = builder.run(mm_call(2, 3, 4), (0, 0), phase=Phase.RECOMPUTE)
    builder.run(mm_call(2, 3, 4), (again, 0), phase=Phase.BACKWARD)
    total = account(builder.build()).total
    assert total.bytes_saved == 0
    assert (total.flops_recompute, total.flops_backward) == (MM_FLOPS, MM_FLOPS)


def test_totals_add() -> None:
    assert Total(count=1, bytes_read=2) + Total(count=3, flops_forward=4) == Total(
        count=4, flops_forward=4, bytes_read=2
    )


# Laws ------------------------------------------------------------------------------------------


@given(trace=traces())
@settings(deadline=None)
def test_every_grouping_sums_to_the_total(trace: Trace) -> None:
    ledger = account(trace)
    ledger.check()
    for grouped in GROUPINGS.values():
        assert sum(grouped(ledger).values(), start=Total()) == ledger.total
    whole = sums(ledger.entries, ledger.times.slots, lambda entry: None).get(None, Total())
    assert whole.flops == sum(cost_of(trace.calls[op.call])[1].flops for op in trace.ops)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"total": Total(count=4, flops_forward=1)}, "flops_forward by line sum to 48"),
        ({"reported": ()}, "operators are counted, free or uncounted, not all"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_caught(
    ledger: Ledger, change: dict[str, object], said: str
) -> None:
    broken = replace(ledger, **change)  # type: ignore[arg-type]
    if "reported" in change:
        broken = replace(broken, total=Total(count=9))
    with pytest.raises(ConservationError, match=said):
        broken.check()


def test_a_lost_entry_is_caught_in_every_grouping(ledger: Ledger) -> None:
    with pytest.raises(ConservationError) as caught:
        replace(ledger, reported=ledger.reported[1:]).check()
    for name in GROUPINGS:
        assert f"count by {name} sum to 3, not to the total 4" in str(caught.value)


def test_broken_memory_is_caught(ledger: Ledger) -> None:
    memory = replace(ledger.memory, at_peak=())
    with pytest.raises(ConservationError, match="categories at the peak sum to 0"):
        replace(ledger, memory=memory).check()


# Times -----------------------------------------------------------------------------------------


def test_another_chip_is_another_column_of_times(ledger: Ledger) -> None:
    """Issuing takes 8 us for the unknown operator at the end of the first step, then 10 us forward
    and twice 7 us backward: 32 us from kernel to kernel on any chip that waits for its host.
    """
    assert ledger.step_s is None
    assert {slot.seconds for slot in ledger.times.slots} == {0.0}
    for name in ("H100-SXM", "A100-SXM"):
        timed = ledger.with_predicted_times(Roofline(chip(name)))
        timed.check()
        assert timed.entries is ledger.entries
        assert timed.roofline == Roofline(chip(name))
        assert timed.step_s == pytest.approx(32e-6)
        assert replace(timed.total, seconds=0.0, kernel_s=0.0) == ledger.total
        assert len(timed.times.slots) == len(ledger.entries) == 9
