"""Ranks that wait for each other, with times a reader can add up."""

from collections.abc import Sequence

import pytest

from torchtally.timing.constants import QUEUED_LAUNCHES
from torchtally.timing.ranks import RankRun, RankTimes, Span, play
from torchtally.timing.roofline import Bound, Kernel
from torchtally.timing.streams import charges
from torchtally.trace import (
    Call,
    Coalesced,
    Op,
    Phase,
    ProcessGroup,
    StreamWait,
    communicator_stream,
)

FORWARD_S, BACKWARD_S, WIRE_S = 1.0, 2.0, 1e-6


class Script:
    """What one rank does, in the order in which its host issues it."""

    def __init__(self, rank: int, ranks: int, queued: int = 1) -> None:
        self.queued = queued
        self.rank, self.group = rank, ProcessGroup("0", "default_pg", tuple(range(ranks)))
        self.calls: list[Call] = []
        self.numbers: dict[Call, int] = {}
        self.ops: list[Op] = []
        self.seconds: list[float] = []
        self.waits: list[StreamWait] = []
        self.coalesced: list[Coalesced] = []

    def run(self, name: str, seconds: float, stream: int = 0, **literals: int) -> int:
        call = Call(name, "default", (), (), tuple(literals.items()))
        number = self.numbers.setdefault(call, len(self.calls))
        if number == len(self.calls):
            self.calls.append(call)
        tick = len(self.ops)
        self.ops.append(Op(tick, number, 0, Phase.FORWARD, (), (), stream))
        self.seconds.append(seconds)
        return tick

    def compute(self, seconds: float) -> int:
        return self.run("aten.mm", seconds)

    def communicate(self, name: str, seconds: float = WIRE_S, **literals: int) -> int:
        """On a stream of its own, behind what the current one has been given."""
        peer = literals.get("dst", literals.get("src"))
        stream = communicator_stream(0, peer)
        self.waits.append(StreamWait(len(self.ops), stream, 0, len(self.ops)))
        return self.run(name, seconds, stream, group=0, **literals)

    def send(self, to: int) -> int:
        return self.communicate("c10d.send", dst=to)

    def receive(self, source: int) -> int:
        """And have what follows wait for it."""
        tick = self.communicate("c10d.recv_", src=source)
        self.wait_for(tick)
        return tick

    def wait_for(self, tick: int) -> None:
        self.waits.append(StreamWait(len(self.ops), 0, self.ops[tick].stream, tick + 1))

    def built(self) -> RankRun:
        kernels = [
            Kernel(seconds, Bound.COMPUTE if self.ops[n].stream == 0 else Bound.NETWORK)
            for n, seconds in enumerate(self.seconds)
        ]
        return RankRun(
            self.ops, [0.0] * len(self.ops), kernels, [0.0] * len(self.ops),
            [self.queued] * len(self.ops), (), self.waits, self.coalesced, self.rank, self.calls,
            (self.group,),
        )  # fmt: skip


def ends_s(played: RankTimes) -> list[float]:
    return [max(span.end_s for span in spans) for spans in played.spans]


def test_a_message_arrives_when_it_has_been_sent() -> None:
    """Rank 0 computes for 5 s and sends for 2; rank 1 waits, and then computes for 1."""
    first, second = Script(0, 2), Script(1, 2)
    first.compute(5)
    first.communicate("c10d.send", 2.0, dst=1)
    tick = second.communicate("c10d.recv_", 2.0, src=0)
    second.wait_for(tick)
    second.compute(1)
    played = play([first.built(), second.built()])
    assert played.spans[0][1] == Span(5, 7, 0)
    assert played.spans[1] == [Span(0, 7, 5), Span(7, 8)]
    assert played.stuck == 0
    receiving, computing = charges(played.spans[1], [True, False])
    assert (receiving.own_s, receiving.waiting_s) == (7, 5)
    assert (computing.own_s, computing.idle_s) == (1, 0)


def test_a_collective_begins_with_its_last_member() -> None:
    """Compute of 1, 2 and 3 s before a reduction of 4 s."""
    scripts = [Script(rank, 3) for rank in range(3)]
    for script in scripts:
        script.compute(script.rank + 1)
        script.communicate("c10d.allreduce_", 4.0)
    played = play([script.built() for script in scripts])
    assert [spans[1] for spans in played.spans] == [Span(1, 7, 2), Span(2, 7, 1), Span(3, 7, 0)]


@pytest.mark.parametrize(("queued", "start_s"), [(QUEUED_LAUNCHES // 2, 0), (QUEUED_LAUNCHES, 9)])
def test_a_full_queue_waits_for_other_ranks(queued: int, start_s: float) -> None:
    """Rank 1 comes to a reduction of 4 s at 5. Where rank 0's queue holds one alone, its host gives
    it the second reduction, and then the product, once the first has ended at 9.
    """
    first, second = Script(0, 2, queued), Script(1, 2, queued)
    second.compute(5)
    for script in (first, second):
        script.communicate("c10d.allreduce_", 4.0)
        script.communicate("c10d.allreduce_", 4.0)
    first.compute(1)
    played = play([first.built(), second.built()])
    assert played.stuck == 0
    assert played.spans[0] == [Span(0, 9, 5), Span(9, 13), Span(start_s, start_s + 1)]


def test_ranks_that_are_not_timed_come_in_time() -> None:
    script = Script(1, 8)
    script.receive(0)
    script.compute(1)
    assert ends_s(play([script.built()])) == [pytest.approx(1 + WIRE_S)]


def ring(is_coalesced: bool) -> list[RankRun]:
    """Each of three ranks sends to the next before it receives from the one before."""
    scripts = [Script(rank, 3) for rank in range(3)]
    for script in scripts:
        stream = communicator_stream(0)
        script.run("c10d.send", 1.0, stream, group=0, dst=(script.rank + 1) % 3)
        script.run("c10d.recv_", 1.0, stream, group=0, src=(script.rank - 1) % 3)
        if is_coalesced:
            script.coalesced.append(Coalesced(0, 2))
    return [script.built() for script in scripts]


def test_what_is_issued_together_runs_together() -> None:
    """Both ways at once: a ring turns in the time of one message."""
    played = play(ring(is_coalesced=True))
    assert played.stuck == 0
    assert ends_s(played) == [1, 1, 1]


def test_ranks_that_wait_in_a_circle_are_stuck() -> None:
    """One stream, first all send: nobody receives. A real run would hang."""
    assert play(ring(is_coalesced=False)).stuck == 3


def test_a_rank_that_never_comes_is_said() -> None:
    first, second = Script(0, 2), Script(1, 2)
    first.communicate("c10d.allreduce_", 1.0)
    first.communicate("c10d.allreduce_", 1.0)
    second.communicate("c10d.allreduce_", 1.0)
    played = play([first.built(), second.built()])
    assert played.stuck == 1
    assert ends_s(played) == [2, 1]


def test_messages_ahead_of_a_wait_are_sent() -> None:
    """A stream that waits holds back neither the host nor other streams: rank 1 gets what it needs
    to answer.
    """
    first, second = Script(0, 2), Script(1, 2)
    answer = first.run("c10d.recv_", 1.0, communicator_stream(0), group=0, src=1)
    first.wait_for(answer)
    first.run("c10d.send", 1.0, communicator_stream(0, 1), group=0, dst=1)
    question = second.run("c10d.recv_", 1.0, communicator_stream(0, 0), group=0, src=0)
    second.waits.append(
        StreamWait(1, communicator_stream(0), communicator_stream(0, 0), question + 1)
    )
    second.run("c10d.send", 1.0, communicator_stream(0), group=0, dst=0)
    assert play([first.built(), second.built()]).stuck == 0


# Pipelines ---------------------------------------------------------------------------------------


def gpipe(stages: int, micro_batches: int) -> list[Script]:
    """All forward passes, then all backward passes."""
    order = [("F", n) for n in range(micro_batches)] + [("B", n) for n in range(micro_batches)]
    return [pipeline(rank, stages, order) for rank in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> list[Script]:
    scripts = []
    for rank in range(stages):
        ahead = min(stages - rank - 1, micro_batches)
        order = [("F", n) for n in range(ahead)]
        for n in range(micro_batches - ahead):
            order += [("F", ahead + n), ("B", n)]
        order += [("B", n) for n in range(micro_batches - ahead, micro_batches)]
        scripts.append(pipeline(rank, stages, order))
    return scripts


def pipeline(rank: int, stages: int, order: Sequence[tuple[str, int]]) -> Script:
    script = Script(rank, stages)
    for kind, _ in order:
        before, after = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
        if 0 <= before < stages:
            way = communicator_stream(0, before)  # what it sends there goes another way
            tick = script.run("c10d.recv_", WIRE_S, way, group=0, src=before)
            script.wait_for(tick)
        script.compute(FORWARD_S if kind == "F" else BACKWARD_S)
        if 0 <= after < stages:
            way = communicator_stream(0, stages + after)
            script.waits.append(StreamWait(len(script.ops), way, 0, len(script.ops)))
            script.run("c10d.send", WIRE_S, way, group=0, dst=after)
    return script


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 4), (8, 32), (3, 1)])
def test_the_bubble_of_a_pipeline(schedule: object, stages: int, micro_batches: int) -> None:
    """(p - 1) / (m + p - 1), within 1 %."""
    assert callable(schedule)
    runs = [script.built() for script in schedule(stages, micro_batches)]
    played = play(runs)
    assert played.stuck == 0
    step_s = max(ends_s(played))
    busy_s = micro_batches * (FORWARD_S + BACKWARD_S)
    expected = (stages - 1) / (micro_batches + stages - 1)
    assert 1 - busy_s / step_s == pytest.approx(expected, rel=0.01)
    for run, spans in zip(runs, played.spans, strict=True):
        is_network = [op.stream != 0 for op in run.ops]
        charged = charges(spans, is_network)
        total_s = sum(charge.own_s + charge.idle_s for charge in charged)
        assert total_s == pytest.approx(max(span.end_s for span in spans))
        waiting_s = sum(charge.waiting_s + charge.idle_s for charge in charged)
        assert waiting_s == pytest.approx(total_s - busy_s, abs=0.01)
