"""The account of a run that goes on agrees with the ledger that is made of it at the end."""

import pytest
from hypothesis import given

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, unknown_call
from tests.strategies import traces
from torchtally.chips import chip
from torchtally.ledger import Line, RunningAccount, account
from torchtally.timing.roofline import Roofline
from torchtally.trace import Frame, Trace, Use

H100 = Roofline(chip("H100-SXM"))


def taken(trace: Trace, *, parts: int = 1, roofline: Roofline | None = H100) -> RunningAccount:
    """An account that was told of the run in so many parts."""
    running = RunningAccount(roofline)
    for part in range(1, parts + 1):
        ops = trace.ops[: len(trace.ops) * part // parts]
        running.take(trace.calls, trace.sites, ops, {})
    return running


@given(trace=traces())
def test_flops_are_those_of_the_whole_run(trace: Trace) -> None:
    running, ledger = taken(trace), account(trace, step="all")
    assert running.total.flops == ledger.total.flops
    assert running.uncounted == ledger.coverage.uncounted_ops
    by_line = {line: so_far.flops for line, so_far in running.hottest(1000)}
    assert sum(by_line.values()) == ledger.total.flops


@given(trace=traces())
def test_parts_add_up(trace: Trace) -> None:
    whole, in_parts = taken(trace), taken(trace, parts=5)
    assert in_parts.total.flops == whole.total.flops
    assert in_parts.total.kernel_s == pytest.approx(whole.total.kernel_s)


def test_the_hottest_line_is_first() -> None:
    builder = TraceBuilder()
    weight = builder.run(factory_call(64, 64))
    for number, size in ((1, 64), (2, 512)):
        builder.run(mm_call(size, 64, 64), (weight, weight), site=site(frame("m.py", number, "x")))
    (line, so_far), *_ = taken(builder.build(), roofline=None).hottest(2)
    assert line == Line("m.py", 2, "x", True)
    assert so_far.flops == 2 * 512 * 64 * 64
    assert so_far.kernel_s == 0


def test_where_one_line_delegates_lines_are_the_model_s() -> None:
    builder = TraceBuilder()
    weight = builder.run(factory_call(64, 64))
    own = frame("train.py", 3, "trainer.train()")
    for number in range(4):
        library = Frame("/lib/site-packages/m.py", number, "Block.forward", "h = mlp(x)", False)
        builder.run(mm_call(64, 64, 64), (weight, weight), site=site(library, own, module="h"))
    lines = {
        line.line for line, so_far in taken(builder.build()).hottest(9) if line and so_far.flops
    }
    assert lines == {0, 1, 2, 3}


def test_placeholders_and_operators_without_a_rule_are_kept() -> None:
    builder = TraceBuilder()
    builder.run(unknown_call("mine"), ())
    trace, running = builder.build(), RunningAccount(None)
    running.take(trace.calls, trace.sites, trace.ops, {(None, "aten.item", "1.0", Use.PRINT): 3})
    assert running.uncounted == 1
    assert [*running.placeholders.values()] == [3]
