"""A step beside other CPUs: what launching takes, and when it is worth a sentence."""

import pytest

from tests.builders import TraceBuilder, factory_call, mm_call
from tests.timing.calibration.machines import H100 as MEASURED
from torchtally.chips import chip
from torchtally.ledger import Ledger, account
from torchtally.timing.constants import GAP_S, GRAPH_GAP_S
from torchtally.timing.hosts import CLOUD, GRACE, NO_HOST, USUAL, host_of
from torchtally.timing.roofline import Roofline
from torchtally.views import by
from torchtally.views.hosts import host_times, slow_host
from torchtally.views.real_run import IdleCause, reported_gaps

US = 1e-6


def ledger(size: int, roofline: Roofline) -> Ledger:
    """Of steps of four products forward."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(size, size))
    for _ in range(3):
        for _ in range(4):
            builder.run(mm_call(size, size, size), (weight, weight))
        builder.end_step()
    return account(builder.build(), roofline=roofline)


def test_a_step_of_short_kernels_takes_what_its_host_takes_to_issue_them() -> None:
    times = {time.host: time for time in host_times(ledger(8, Roofline(chip("H100-SXM"))))}
    assert [time.is_own for time in times.values()] == [False, True, False, False, False]
    assert times[USUAL.name].issue_s == pytest.approx(4 * 10 * US)
    assert times[USUAL.name].step_s == pytest.approx(40 * US)
    assert times[GRACE.name].step_s == pytest.approx(2.7 * 40 * US)
    assert times[CLOUD.name].step_s == pytest.approx(31 / 9.8 * 40 * US)
    kernels = times[NO_HOST.name]
    assert kernels.issue_s == 0
    # A graph's kernels follow each other after half a microsecond, and most of the step is theirs.
    assert kernels.idle_share == pytest.approx(4 * GRAPH_GAP_S / kernels.step_s)
    assert kernels.idle_share < 0.2
    kernel_s = (1 - kernels.idle_share) * kernels.step_s
    assert times[USUAL.name].idle_share == pytest.approx(1 - kernel_s / (40 * US))


def test_a_device_that_is_behind_idles_between_queued_kernels() -> None:
    """Four products of 8192: each starts a little after the one before."""
    gaps = [gap for _, gap in reported_gaps(ledger(8192, Roofline(chip("H100-SXM"))))]
    assert {gap.cause for gap in gaps} == {IdleCause.BETWEEN}
    assert [gap.seconds for gap in gaps] == pytest.approx([GAP_S] * 4)
    late = [gap for _, gap in reported_gaps(ledger(8, Roofline(chip("H100-SXM"))))]
    assert {gap.cause for gap in late} == {IdleCause.HOST_LATE}


def test_a_chip_on_one_board_with_grace_has_it_for_a_host() -> None:
    assert host_of(chip("GH200")) is GRACE
    assert host_of(chip("H100-SXM")) is USUAL
    assert ledger(8, Roofline(chip("GH200"))).step_s == pytest.approx(2.7 * 40 * US)


def test_a_measured_machine_is_a_row_of_its_own() -> None:
    *others, own = host_times(ledger(8, Roofline(chip("H100-SXM"), MEASURED)))
    assert own.is_own
    assert own.issue_s == pytest.approx(4 * MEASURED.issue.forward_s)
    assert [time.is_own for time in others] == [False] * 5


def test_a_slow_host_is_told_where_it_matters() -> None:
    """Four products of 8192 take some 80 ms, and no host so long to issue four."""
    roofline = Roofline(chip("H100-SXM"))
    told = slow_host(ledger(8, roofline))
    assert told is not None
    assert told.step_s == pytest.approx(31 / 9.8 * 40 * US)
    assert slow_host(ledger(8192, roofline)) is None


def test_the_view_marks_its_own_host() -> None:
    table = by(ledger(8, Roofline(chip("H100-SXM"))), "host")
    assert [str(name).endswith("*") for name in table.column("host")] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert table.column("relative")[1] == 1
