"""A host that is as far ahead as a queue holds launches waits for its device, by hand."""

import pytest

from tests.builders import spec
from tests.timing.test_schedule import kernel, run, seconds
from torchtally.timing.constants import QUEUED_LAUNCHES
from torchtally.timing.launch_queue import LaunchQueue
from torchtally.timing.ranks import RankRun, play
from torchtally.timing.schedule import CallTime, DeviceQueue, call_time
from torchtally.timing.streams import DeviceStreams
from torchtally.timing.targets import roofline
from torchtally.trace import Call, Op, Phase
from torchtally.work import cost_of

SHORT = kernel(0.1)._replace(queued=1)
FILLING = kernel(10)._replace(queued=QUEUED_LAUNCHES)


def test_the_oldest_make_room():
    """Of 1,022 launches and two of one, the next three need the first to end, then the second."""
    queue = LaunchQueue[str]()
    for name, launches in (("a", 1022), ("b", 1), ("c", 1)):
        assert queue.make_room(launches) is None
        queue.add(name, launches)
    assert queue.make_room(1) == "a"
    queue.add("d", 1021)
    assert queue.make_room(2) == "b"


def test_an_operator_of_more_launches_than_the_queue_holds_needs_it_empty():
    queue = LaunchQueue[str]()
    queue.add("a", 1)
    queue.add("b", 1)
    assert queue.make_room(3 * QUEUED_LAUNCHES) == "b"
    assert queue.make_room(3 * QUEUED_LAUNCHES) is None


def test_the_host_waits_for_a_full_queue():
    """The first is issued at 1 and done at 11. Only then the second is issued, at 12, and the
    third at 13; in a queue with room both would have been issued while the first ran.
    """
    assert seconds(run(FILLING, SHORT, SHORT)) == pytest.approx([11, 1.1, 1.0])
    roomy = FILLING._replace(queued=QUEUED_LAUNCHES - 2)
    assert seconds(run(roomy, SHORT, SHORT)) == pytest.approx([11, 0.1, 0.1])


@pytest.mark.parametrize("queued", [1, 300, 700, 2000])
def test_all_schedules_wait_alike(queued):
    """Device, streams and ranks, of ten operators of three lengths on one stream."""
    times = [kernel(n % 3 + 0.1)._replace(queued=queued) for n in range(10)]
    queue, streams = DeviceQueue(), DeviceStreams()
    ops = [Op(tick, tick, 0, Phase.FORWARD, (), ()) for tick in range(10)]
    ends_s, hosts_s = [], []
    for time in times:
        queue.issue(0.25, time.kernel.seconds, 0.0, time.queued)
        ends_s.append(queue.device_s)
        hosts_s.append(queue.host_s)
    spans = [streams.run(op, 0.25, time.kernel.seconds, 0.0, time.queued)
             for op, time in zip(ops, times, strict=True)]  # fmt: skip
    assert [span.end_s for span in spans] == ends_s
    played = play([rank_run(ops, times)])
    assert [span.end_s for span in played.spans[0]] == pytest.approx(ends_s)
    waits = hosts_s[-1] > 10 * 0.25
    assert waits is (queued * 9 > QUEUED_LAUNCHES)


def rank_run(ops: list[Op], times: list[CallTime]) -> RankRun:
    return RankRun(
        ops, [0.25] * len(ops), [time.kernel for time in times], [0.0] * len(ops),
        [time.queued for time in times], (),
    )  # fmt: skip


def test_another_stream_has_a_queue_of_its_own():
    streams = DeviceStreams()
    streams.run(Op(0, 0, 0, Phase.FORWARD, (), ()), 1.0, 10.0, 0.0, QUEUED_LAUNCHES)
    beside = streams.run(Op(1, 1, 0, Phase.FORWARD, (), (), stream=7), 1.0, 1.0, 0.0, 1)
    assert (beside.start_s, streams.host_s) == (2.0, 2.0)
    behind = streams.run(Op(2, 2, 0, Phase.FORWARD, (), ()), 1.0, 1.0, 0.0, 1)
    assert (behind.start_s, streams.host_s) == (12.0, 12.0)


def queued_on(name: str, call: Call) -> int:
    kind, cost = cost_of(call)
    return call_time(call, kind, cost, roofline(name)).queued


def test_launches_count_where_the_queue_is_known():
    """A softmax backward takes two kernels; of an MI300X's queue the length is not known."""
    inputs = spec(64, 64, argument="grad_output"), spec(64, 64, argument="output")
    softmax = Call(
        "aten._softmax_backward_data", "default", inputs, (spec(64, 64, storage=1),), (("dim", 1),)
    )
    assert queued_on("H100-SXM", softmax) == 2
    assert queued_on("MI300X", softmax) == 0
