"""Streams beside each other, with times a reader can add up."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timing.test_schedule import Machine, kernel, trace_of
from torchtally.timing.calibration import Issue
from torchtally.timing.ranks import Span
from torchtally.timing.roofline import Bound, Kernel
from torchtally.timing.schedule import CallTime, TimedOps, schedule
from torchtally.timing.slots import Slot
from torchtally.timing.streams import Covered
from torchtally.trace import HOST, Op, Phase, StreamWait
from torchtally.work import Kind

COMPUTE, NETWORK = 0, 1
AT_ONCE = Machine(issue=Issue(0.0, 0.0, 0.0, 0.0, 0.0))


def collective(seconds: float) -> CallTime:
    return CallTime(Kernel(seconds, Bound.NETWORK), Kind.COMMUNICATION, 0)


def run(
    *times: tuple[int, CallTime], waits: tuple[StreamWait, ...] = (), machine: Machine = AT_ONCE,
    host_waits: tuple[int, ...] = (),
) -> list[Slot]:  # fmt: skip
    """Operators on streams, in the order in which the host issues them."""
    ops = [
        Op(tick, tick, 0, Phase.FORWARD, (), (), stream) for tick, (stream, _) in enumerate(times)
    ]
    part = TimedOps(
        trace_of(ops, waits=host_waits, stream_waits=waits), ops, [time for _, time in times]
    )
    return schedule([part], machine).slots[0]  # type: ignore[arg-type]


def seconds(slots: list[Slot]) -> list[float]:
    return [slot.seconds for slot in slots]


def test_a_collective_behind_products_is_not_exposed() -> None:
    """0..4 and 4..8 compute, 0..6 the collective: all of it is hidden."""
    slots = run((NETWORK, collective(6)), (COMPUTE, kernel(4)), (COMPUTE, kernel(4)))
    assert seconds(slots) == [0, 4, 4]
    assert slots[0].kernel_s == 6


def test_who_waits_for_a_collective_exposes_what_is_left_of_it() -> None:
    """0..4 compute, 0..6 the collective, and only then 6..10: two seconds of it are exposed."""
    slots = run(
        (NETWORK, collective(6)), (COMPUTE, kernel(4)), (COMPUTE, kernel(4)),
        waits=(StreamWait(2, COMPUTE, NETWORK, 1),),
    )  # fmt: skip
    assert seconds(slots) == [2, 4, 4]
    assert slots[0].bound is Bound.NETWORK


def test_six_operators_by_hand() -> None:
    """Two layers' backward passes and their reductions, a last one, and the optimizer.

    compute  0-3 a  3-6 b                11-13 update
    network        3-8 reduce a  8-11 reduce b
    A gather (0-2) runs behind a on a third stream. From 6 to 11 reductions are exposed: 2 and 3.
    """
    slots = run(
        (2, collective(2)),
        (COMPUTE, kernel(3)),
        (NETWORK, collective(5)),
        (COMPUTE, kernel(3)),
        (NETWORK, collective(3)),
        (COMPUTE, kernel(2)),
        waits=(
            StreamWait(2, NETWORK, COMPUTE, 2),
            StreamWait(4, NETWORK, COMPUTE, 4),
            StreamWait(5, COMPUTE, NETWORK, 5),
        ),
    )
    assert seconds(slots) == [0, 3, 2, 3, 3, 2]


def test_a_host_that_waits_issues_late_and_the_device_idles() -> None:
    """It waits for the collective's end at 6, issues for a second, and 7 to 8 is computed."""
    slow = Machine(issue=Issue(1.0, 1.0, 1.0, 1.0, 0.0))
    slots = run((NETWORK, collective(5)), (COMPUTE, kernel(1)), machine=slow,
                waits=(StreamWait(1, HOST, NETWORK, 1),))  # fmt: skip
    assert seconds(slots) == [6, 2]
    assert slots[1].bound is Bound.MEMORY


def test_kernels_that_queue_on_a_stream_start_a_little_later() -> None:
    """0.5-4.5 and 5-9 compute, 0-9 the collective: it is exposed for the half seconds before."""
    gapped = kernel(4)._replace(gap_s=0.5)
    slots = run((COMPUTE, gapped), (COMPUTE, gapped), (NETWORK, collective(9)))
    assert seconds(slots) == [4, 4, 1]


def test_two_collectives_at_once_are_charged_once() -> None:
    slots = run((NETWORK, collective(4)), (2, collective(6)))
    assert seconds(slots) == [4, 2]


def test_only_earlier_operators_are_waited_for() -> None:
    """An event before the second collective: its time is behind the product."""
    slots = run((NETWORK, collective(2)), (NETWORK, collective(5)), (COMPUTE, kernel(7)),
                waits=(StreamWait(2, COMPUTE, NETWORK, 1),))  # fmt: skip
    assert seconds(slots) == [2, 0, 7]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 3)), max_size=20),
)
def test_the_parts_sum_to_the_end(
    drawn: list[tuple[int, int, bool]], drawn_waits: list[tuple[int, int, int]]
) -> None:
    """Of any run with a collective: no moment is charged twice, and none to nobody."""
    times = [
        (stream, collective(length) if is_network else kernel(length))
        for stream, length, is_network in [*drawn, (0, 1, True)]
    ]
    waits = tuple(StreamWait(tick, a, b, tick) for tick, a, b in sorted(drawn_waits) if a != b)
    machine = Machine(issue=Issue(0.5, 0.5, 0.5, 0.5, 0.0))
    slots = run(*times, waits=waits, machine=machine)
    assert min(seconds(slots)) >= 0
    busy_s = max(
        sum(time.kernel.seconds for stream, time in times if stream == each) for each in range(4)
    )
    total_s = sum(seconds(slots))
    assert busy_s <= total_s + 1e-9
    assert total_s <= sum(time.kernel.seconds for _, time in times) + 0.5 * len(times) + 1e-9


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=20))
def test_a_union_of_intervals_counts_each_moment_once(drawn: list[tuple[int, int]]) -> None:
    starts = list(accumulate(gap for gap, _ in drawn))
    spans = [Span(start, start + length) for start, (_, length) in zip(starts, drawn, strict=True)]
    covered = Covered()
    added = sum(covered.add(span) for span in spans)
    moments = {at for span in spans for at in range(int(span.start_s), int(span.end_s))}
    assert added == len(moments)
    for start in range(0, 40, 3):
        inside = sum(start <= at < start + 7 for at in moments)
        assert covered.overlap_s(start, start + 7) == pytest.approx(inside)


def crowding(multiprocessors: float, bandwidth: float = 0.0) -> CallTime:
    """A collective of 4 s."""
    shares = {"multiprocessor_share": multiprocessors, "bandwidth_share": bandwidth}
    return CallTime(Kernel(4.0, Bound.NETWORK, **shares), Kind.COMMUNICATION, 0)


def product(seconds: float) -> CallTime:
    return CallTime(Kernel(seconds, Bound.COMPUTE), Kind.PRODUCT, 0)


def test_what_computes_takes_longer_beside_a_collective() -> None:
    """A quarter of the multiprocessors is taken: 3 s of products take all of its 4 s, 6 s of them
    take 7; what follows is as ever. Of the bandwidth half is taken, which copies miss.
    """
    first = (NETWORK, crowding(0.25, 0.5))
    assert seconds(run(first, (COMPUTE, product(3)), (COMPUTE, kernel(2)))) == [0, 4, 2]
    assert seconds(run(first, (COMPUTE, product(6)))) == [0, 7]
    assert seconds(run(first, (COMPUTE, kernel(2)))) == [0, 4]


def test_collectives_never_take_more_than_half() -> None:
    """Two communicators' kernels of 4 s each, with 70 % each if they could."""
    first = ((NETWORK, crowding(0.7)), (NETWORK + 1, crowding(0.7)))
    assert seconds(run(*first, (COMPUTE, product(2)))) == [0, 0, 4]
