"""A measured step beside a predicted one: every second of the difference has a cause."""

from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.kineto_files import BF16, TraceMaker, contiguous
from torchtally.ledger import Ledger, account
from torchtally.ledger.joining import Joined, beside, join_ledgers, with_lines_of
from torchtally.runs.explaining import explain
from torchtally.runs.function import run
from torchtally.timing.targets import known_roofline
from torchtally.views.against import (
    Cause,
    differences,
    kernel_ratios,
    lines_against,
    lost_time,
    unmatched_operators,
)

US = 1e-6
N = 2048


def simulated() -> Ledger:
    """Three products and an addition, each on a line of its own."""
    import torch

    def work() -> None:
        a, b = (torch.empty(N, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        c = a @ b
        d = c @ b
        e = d @ b
        e.add(d)

    return account(run(work, gpu="H100-SXM"), roofline=known_roofline("H100-SXM"))


def measured(tmp_path: Path, steps: list[tuple[str, float, float]]) -> Ledger:
    """Operators with a kernel each: (name, idle microseconds before it, its microseconds)."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 10_000)
    host = device = 0.0
    for name, idle, duration in steps:
        host = max(host + 4, device + idle - 1 if idle else 0)
        shapes: list[Any] = [[N, N], [N, N]]
        types, values = [BF16, BF16], ["", ""]
        if name in ("aten::add", "aten::sub"):
            shapes, types, values = [*shapes, []], [*types, "Scalar"], ["", "", "1"]
        maker.operator(name, host, 3, shapes, types, values)
        device = max(device + idle, host + 2)
        maker.kernel(f"k_{name[6:]}", host + 1, device, duration)
        device += duration
    assert contiguous([N, N]) == [N, 1]
    trace = explain(str(maker.write(tmp_path / "t.json")))
    return account(trace, roofline=known_roofline("H100-SXM"))


def joined_with_lines(real: Ledger, predicted: Ledger) -> tuple[Ledger, Ledger, Joined]:
    predicted, join = beside(real, predicted)
    placed = account(with_lines_of(real.trace, join.pairs), roofline=known_roofline("H100-SXM"))
    return placed, predicted, join


PRODUCTS = [("aten::mm", 0.0, 50.0), ("aten::mm", 0.0, 30.0), ("aten::mm", 0.0, 30.0)]


def test_operators_are_joined_in_order_and_take_the_simulated_lines(tmp_path: Path) -> None:
    real = measured(tmp_path, [*PRODUCTS, ("aten::add", 0.0, 10.0)])
    placed, _, join = joined_with_lines(real, simulated())
    assert join.share == 1
    assert join.only_predicted == ()
    seconds = {line and line.text: total.seconds for line, total in placed.by_line().items()}
    assert seconds["c = a @ b"] == pytest.approx(50 * US)
    assert [seconds[line] for line in ("d = c @ b", "e = d @ b")] == pytest.approx([30 * US] * 2)
    assert seconds["e.add(d)"] == pytest.approx(10 * US)


def test_what_one_of_both_ran_is_a_finding(tmp_path: Path) -> None:
    real = measured(tmp_path, [*PRODUCTS[:2], ("aten::sub", 0.0, 7.0), PRODUCTS[2]])
    placed, predicted, join = joined_with_lines(real, simulated())
    assert [entry.call.name for entry in join.only_real] == ["aten.sub"]
    assert [entry.call.name for entry in join.only_predicted] == ["aten.add"]
    table = unmatched_operators(join, placed, predicted)
    causes = {row[2]: (row[0], row[3]) for row in table.rows}
    assert causes[str(Cause.ONLY_REAL)] == (pytest.approx(7 * US), "aten.sub")


def test_the_differences_sum_to_the_difference(tmp_path: Path) -> None:
    slow = [("aten::mm", 0.0, 90.0), ("aten::mm", 40.0, 31.0), ("aten::sub", 0.0, 7.0),
            ("aten::mm", 0.0, 5.0)]  # fmt: skip
    placed, predicted, join = joined_with_lines(measured(tmp_path, slow), simulated())
    lost_s = placed.total.seconds - predicted.total.seconds
    assert fsum(each.seconds for each in differences(placed, predicted, join)) == pytest.approx(
        lost_s
    )
    for table in (lost_time(placed, predicted, join), lines_against(placed, predicted)):
        assert table.totals[0] == pytest.approx(lost_s)
        assert fsum(float(row[0] or 0) for row in table.rows) == pytest.approx(lost_s)
    causes = {row[3] for row in lost_time(placed, predicted, join).rows}
    assert {str(Cause.KERNEL), str(Cause.FASTER), str(Cause.ONLY_REAL)} <= causes


def test_construction_before_the_first_common_operator_is_no_part(tmp_path: Path) -> None:
    import torch

    def work() -> None:
        weights = torch.empty(N, N, dtype=torch.bfloat16).cuda()
        a = torch.empty(N, N, device="cuda", dtype=torch.bfloat16)
        (a @ weights) @ weights

    predicted = account(run(work, gpu="H100-SXM"), roofline=known_roofline("H100-SXM"))
    real = measured(tmp_path, PRODUCTS[:2])
    cut, join = beside(real, predicted)
    assert join.only_predicted == ()
    assert cut.total.seconds < predicted.total.seconds
    cut.check()
    assert join_ledgers(real, predicted).only_predicted != ()


def test_a_low_clock_slows_products_and_not_memory(tmp_path: Path) -> None:
    predicted = simulated()
    product_us = predicted.by_op()["aten.mm"].kernel_s / 3 / US
    addition_us = predicted.by_op()["aten.add"].kernel_s / US
    steps = [("aten::mm", 0.0, 1.3 * product_us)] * 3 + [("aten::add", 0.0, addition_us)]
    placed, cut, join = joined_with_lines(measured(tmp_path, steps), predicted)
    many = replace(join, pairs=join.pairs * 8)
    ratios = kernel_ratios(placed, cut, many)
    assert ratios.compute == pytest.approx(1.3, rel=0.05)
    assert ratios.is_clock_down == (ratios.memory is not None and ratios.memory < 1.15)
    even = replace(ratios, memory=1.3)
    assert not even.is_clock_down
