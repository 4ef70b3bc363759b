"""Host and device in turn, with times a reader can add up."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchtally.timing.calibration import Issue
from torchtally.timing.roofline import Bound, Kernel
from torchtally.timing.schedule import CallTime, TimedOps, schedule
from torchtally.timing.slots import Slot
from torchtally.trace import Ending, Op, Phase, Trace
from torchtally.work import Kind

SECOND = Issue(forward_s=1.0, backward_s=2.0, optimizer_s=3.0, view_s=0.5, launch_s=0.25)


@dataclass
class Machine:
    """What the schedule reads of a roofline."""

    is_host: bool = False
    issue: Issue = field(default=SECOND)


def kernel(seconds: float, *, extra: int = 0) -> CallTime:
    return CallTime(Kernel(seconds, Bound.MEMORY), Kind.ELEMENTWISE, extra)


VIEW = CallTime(Kernel(0.0, Bound.OVERHEAD), Kind.VIEW, 0)


def run(*times: CallTime, machine: Machine | None = None, waits: tuple[int, ...] = (),
        ends: tuple[int, ...] = (), phase: Phase = Phase.FORWARD) -> list[Slot]:  # fmt: skip
    ops = [Op(tick, tick, 0, phase, (), ()) for tick in range(len(times))]
    part = TimedOps(trace_of(ops, waits=waits, step_ends=ends), ops, times)
    return schedule([part], machine or Machine()).slots[0]  # type: ignore[arg-type]


def trace_of(ops: Sequence[Op], **facts: Any) -> Trace:
    """Operators whose calls nobody looks at."""
    return Trace(
        "", "", "", (), (), tuple(ops), (), ending=Ending("exit"), **{"step_ends": (), **facts}
    )


def seconds(slots: list[Slot]) -> list[float]:
    return [slot.seconds for slot in slots]


def test_tensors_of_a_list_take_the_host_longer():
    """An optimizer's operator 3 s, and 0.5 s for each of 4 tensors; then its kernel."""
    machine = Machine(issue=replace(SECOND, list_s=0.5))
    listed = kernel(0.1)._replace(listed=4)
    slots = run(kernel(0.1), listed, machine=machine, phase=Phase.OPTIMIZER)
    assert seconds(slots) == pytest.approx([3.1, 5.0])


def test_a_slow_device_waits_for_its_first_operator_only():
    """Issued at 1, 2, 3; done at 11, 21, 31: ten seconds each, and one of waiting."""
    slots = run(kernel(10), kernel(10), kernel(10))
    assert seconds(slots) == [11, 10, 10]
    assert [slot.bound for slot in slots] == [Bound.MEMORY] * 3


def test_a_fast_device_waits_for_every_operator():
    """Issued at 1, 2, 3, done a tenth later: overhead, nine tenths of it."""
    slots = run(kernel(0.1), kernel(0.1), kernel(0.1))
    assert seconds(slots) == pytest.approx([1.1, 1.0, 1.0])
    assert {slot.bound for slot in slots} == {Bound.OVERHEAD}
    assert sum(slot.kernel_s for slot in slots) == pytest.approx(0.3)


def test_a_host_that_waited_is_no_longer_ahead():
    """Done at 11; only then is the second issued, at 12, and done at 22."""
    assert seconds(run(kernel(10), kernel(10), waits=(1,))) == [11, 11]
    assert seconds(run(kernel(10), kernel(10))) == [11, 10]


def test_kernels_that_queue_start_a_little_later():
    """Issued at 1, 2, 3: the first at once, the others half a second after the one before, which no
    view is charged for.
    """
    gapped = kernel(10)._replace(gap_s=0.5)
    slots = run(gapped, VIEW, gapped, VIEW, gapped)
    assert seconds(slots) == [11, 0, 10.5, 0, 10.5]
    assert [slot.kernel_s for slot in slots] == [10, 0, 10, 0, 10]
    assert [slot.bound for slot in slots[::2]] == [Bound.MEMORY] * 3


def test_a_device_that_waits_for_its_host_has_no_gap_besides():
    assert seconds(run(*[kernel(0.1)._replace(gap_s=0.5)] * 3)) == pytest.approx([1.1, 1.0, 1.0])


def test_idle_time_is_shared_by_what_the_host_did_meanwhile():
    """Two views at half a second and an operator at one: two seconds, then its kernel."""
    assert seconds(run(VIEW, VIEW, kernel(4))) == [0.5, 0.5, 5.0]


def test_idle_time_stays_within_its_step():
    """The view of the step before is not charged for the operator of the next."""
    assert seconds(run(VIEW, kernel(4), ends=(1,))) == [0.0, 5.5]


def test_launches_take_the_hosts_time():
    assert seconds(run(kernel(0.1, extra=4))) == pytest.approx([1 + 4 * 0.25 + 0.1])


@pytest.mark.parametrize(
    ("phase", "issued_s"),
    [(Phase.FORWARD, 1), (Phase.RECOMPUTE, 1), (Phase.BACKWARD, 2), (Phase.OPTIMIZER, 3)],
)
def test_each_phase_is_issued_at_its_own_rate(phase, issued_s):
    assert seconds(run(kernel(0.5), phase=phase)) == [issued_s + 0.5]


def test_a_cpu_issues_and_computes_one_after_the_other():
    slots = run(kernel(10), VIEW, kernel(0.5), machine=Machine(is_host=True), waits=(2,))
    assert seconds(slots) == [11, 0.5, 1.5]
    assert [slot.bound for slot in slots] == [Bound.MEMORY, Bound.OVERHEAD, Bound.OVERHEAD]


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=30),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
    st.booleans(),
)
def test_laws(kernels_s, waits, ends, is_host):
    """No operator takes less than its kernel; a step no less than all kernels, nor than the host;
    waiting never makes it shorter.
    """
    prices = [kernel(kernel_s) if kernel_s > 1 else VIEW for kernel_s in kernels_s]
    machine = Machine(is_host=is_host)
    slots = run(*prices, machine=machine, waits=tuple(sorted(waits)), ends=tuple(sorted(ends)))
    total_s = sum(seconds(slots))
    assert all(0 <= slot.kernel_s <= slot.seconds + 1e-9 for slot in slots)
    kernels_sum = sum(price.kernel.seconds for price in prices)
    assert kernels_sum - 1e-9 <= total_s
    issued_s = sum(0.5 if price is VIEW else 1.0 for price in prices)
    assert total_s <= kernels_sum + issued_s + 1e-9
    assert sum(seconds(run(*prices, machine=machine))) <= total_s + 1e-9
