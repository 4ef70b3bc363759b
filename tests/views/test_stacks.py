"""Stacks: every quantity's amounts sum to the ledger's total, and nothing is in two stacks."""

import pytest
from hypothesis import given

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, unknown_call
from tests.strategies import traces
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.timing.roofline import Roofline
from torchtally.trace import Phase, Role, Trace
from torchtally.views.stacks import QUANTITIES, Level, LevelKind, stacks, whole_ns

H100 = Roofline(chip("H100-SXM"))


def totals(ledger: Ledger) -> dict[str, int]:
    total = ledger.total
    return {
        "time": round(total.seconds * 1e9),
        "flops": total.flops,
        "bytes": total.bytes,
        "saved": total.bytes_saved,
        "memory": ledger.memory.peak_bytes,
    }


@given(traces())
def test_every_quantity_sums_to_the_ledgers_total(trace: Trace) -> None:
    ledger = account(trace, roofline=H100)
    by_quantity = {name: stacks(ledger, name) for name in QUANTITIES}
    assert {name: each.total for name, each in by_quantity.items()} == totals(ledger)
    for each in by_quantity.values():
        assert sum(each.merge().values()) == each.total
        assert all(amount > 0 for _, amount in each.rows)


def names(levels: tuple[Level, ...]) -> list[str]:
    return [level.name for level in levels]


def test_a_stack_is_modules_then_the_line_then_the_operator() -> None:
    builder = TraceBuilder()
    up = site(frame(line=7), module="h.0.up", module_class="Linear")
    builder.run(factory_call(4), site=site(frame(line=2), module="", module_class="GPT"))
    builder.run(mm_call(2, 3, 4), [-1, -1], site=up)
    builder.run(mm_call(2, 3, 4), [-1, -1], site=up, phase=Phase.BACKWARD)
    builder.run(mm_call(2, 3, 4), [-1, -1], site=up, phase=Phase.BACKWARD)
    builder.run(unknown_call())
    paths = stacks(account(builder.build()), "flops")
    assert [(names(levels), amount) for levels, amount in paths.rows] == [
        (["GPT", "h", "h.0", "h.0.up: Linear", "train.py:7  line_7()", "aten.mm (forward)"], 48),
        (["GPT", "h", "h.0", "h.0.up: Linear", "train.py:7  line_7()", "aten.mm (backward)"], 96),
    ]
    assert paths.missing == "1 operators without a rule are in no stack."


def test_memory_at_the_peak_is_what_holds_it() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(128), role=Role.PARAMETER, name="h.0.weight")
    builder.run(factory_call(128), site=site(frame(line=3)))
    paths = stacks(account(builder.build()), "memory")
    assert [(names(levels), amount) for levels, amount in paths.rows] == [
        (["h", "h.0", "(no line)", "parameters: h.0.weight"], 512),
        (["(outside any module)", "train.py:3  line_3()", "activations: aten.empty"], 512),
    ]


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("h.0.up: Linear", "h.*.up: Linear"),
        ("h.10: Block", "h.*: Block"),
        ("parameters: h.3.weight", "parameters: h.*.weight"),
        ("0.1: Linear", "*.*: Linear"),
        ("layer1.conv2: Conv2d", "layer1.conv2: Conv2d"),
    ],
)
def test_repeated_modules_have_one_name(name: str, together: str) -> None:
    assert Level(LevelKind.MODULE, name).without_numbers().name == together


def test_nanoseconds_are_rounded_together() -> None:
    assert whole_ns([0.4e-9] * 5) == [0, 1, 0, 1, 0]
    assert sum(whole_ns([1.26e-9] * 1000)) == 1260


def test_what_cannot_be_stacked_is_named() -> None:
    ledger = account(TraceBuilder().build())
    with pytest.raises(UsageError, match="Did you mean flops"):
        stacks(ledger, "flop")
    with pytest.raises(UsageError, match="times are unknown"):
        stacks(ledger, "time")
