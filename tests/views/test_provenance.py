"""The finest grouping of a run: it sums to the ledger, and names each operator's place."""

import pytest

from tests.builders import TraceBuilder, big_trace, factory_call, frame, mm_call, site
from torchtally.chips import chip
from torchtally.ledger import account
from torchtally.timing.roofline import Bound, Roofline
from torchtally.trace import Phase
from torchtally.views.provenance import provenances

UP = site(frame("model.py", 3), module="up", module_class="Linear")


def test_alike_operators_are_one_row_and_others_are_not() -> None:
    builder = TraceBuilder()
    weight = builder.run(factory_call(4, 4))
    for phase in (Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD):
        builder.run(mm_call(2, 4, 8), (weight, weight), site=UP, phase=phase)
    builder.end_step()
    table = provenances(account(builder.build()))
    assert [job.operator for job in table.jobs] == ["aten.empty", "aten.mm"]
    assert table.of_kernels == (0, 1, 1, 2)
    counts = {row: spent.count for (row, _), spent in table.spent.items()}
    assert counts == {0: 1, 1: 2, 2: 1}
    assert table.jobs[1].cost.flops == 2 * 2 * 4 * 8
    line = table.lines[table.rows[1].site]
    assert line is not None
    assert (line.file, line.line) == ("model.py", 3)


@pytest.mark.parametrize("roofline", [None, Roofline(chip("H100-SXM"))])
def test_rows_sum_to_the_ledger(roofline: Roofline | None) -> None:
    ledger = account(big_trace(4000), roofline=roofline)
    table = provenances(ledger)
    spent = table.spent.items()
    total = ledger.total
    assert sum(each.count for _, each in spent) == total.count == 2000
    assert sum(each.bytes_saved for _, each in spent) == total.bytes_saved
    assert sum(each.bytes_allocated for _, each in spent) == total.bytes_allocated
    assert sum(each.seconds for _, each in spent) == pytest.approx(total.seconds)
    costs = [table.jobs[table.rows[row].job].cost * each.count for (row, _), each in spent]
    assert sum(cost.flops for cost in costs) == total.flops
    assert sum(cost.bytes for cost in costs) == total.bytes
    assert len(table.of_kernels) == 4000


def test_seconds_by_bound_are_the_ledgers() -> None:
    ledger = account(big_trace(2000), roofline=Roofline(chip("H100-SXM")))
    by_bound: dict[Bound, float] = {}
    for (_, bound), spent in provenances(ledger).spent.items():
        by_bound[bound] = by_bound.get(bound, 0.0) + spent.seconds
    expected = {bound: total.seconds for bound, total in ledger.by_bound().items()}
    assert by_bound == pytest.approx(expected)
