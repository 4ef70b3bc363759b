"""Tracks over time: no two slices at once, and their sums are the ledger's seconds."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchtally
from tests.builders import TraceBuilder, mm_call, spec
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.exports.perfetto import timeline_text
from torchtally.timing.moments import Occupation
from torchtally.timing.roofline import Roofline
from torchtally.trace import Call, Coalesced, Phase, ProcessGroup, StreamWait, Trace, World
from torchtally.trace.ranks import communicator_stream
from torchtally.views.collectives import network_time
from torchtally.views.slices import Slice
from torchtally.views.tracks import RankTracks, Track, tracks_of
from torchtally.work import Kind

H100 = Roofline(chip("H100-SXM"))
NS = 1e-9


def seconds_of(slices: list[Slice]) -> float:
    return sum(each.end_ns - each.start_ns for each in slices) * NS


def overlaps(track: Track) -> list[tuple[Slice, Slice]]:
    return [(a, b) for a, b in pairwise(track.slices) if b.start_ns < a.end_ns]


def ledger_of(rank: RankTracks, ledger: Ledger) -> Ledger:
    own = (ledger, *ledger.others)
    return next(each for each in own if each.trace.world.rank == rank.rank)


def check_tracks(ledger: Ledger, *, is_coalesced: bool = False) -> None:
    """The laws of tracks. What is launched together is one slice, in which wires are shared."""
    for rank in tracks_of(ledger):
        own = ledger_of(rank, ledger)
        kernel_s: dict[int, float] = defaultdict(float)
        evaluation = rank.name.endswith("evaluation by itself")
        apart = own.times.is_evaluation_apart
        for entry in own.reported:
            if not apart or (entry.op.phase is Phase.EVALUATION) == evaluation:
                kernel_s[entry.op.stream] += own.slot(entry).kernel_s
        slices_s: dict[int, float] = defaultdict(float)
        count = 1
        for track in rank.tracks:
            assert overlaps(track) == []
            count += len(track.slices)
            if track.stream is not None:
                slices_s[track.stream] += seconds_of(
                    [each for each in track.slices if each.name != str(Occupation.WAITING)]
                )
        for stream, busy_s in kernel_s.items():
            if is_coalesced and stream:
                assert slices_s[stream] <= busy_s + count * NS
            else:
                assert slices_s[stream] == pytest.approx(busy_s, abs=count * NS)
        if not (apart and any(entry.op.phase is Phase.EVALUATION for entry in own.reported)):
            check_step(rank.tracks[0], own)
        for held in rank.held:
            ticks = [at_ns for at_ns, _ in held.points]
            assert ticks == sorted(ticks)
        for arrow in rank.arrows:
            assert arrow.from_ns <= arrow.to_ns
            for number, at_ns in ((arrow.from_track, arrow.from_ns), (arrow.to_track, arrow.to_ns)):
                slices = rank.tracks[number].slices
                assert any(each.start_ns <= at_ns <= each.end_ns for each in slices)


def check_step(track: Track, ledger: Ledger) -> None:
    """Every moment of the step is there once, and for what the summary says."""
    by_name: dict[str, list[Slice]] = defaultdict(list)
    for each in track.slices:
        by_name[each.name].append(each)
    near = (2 * len(track.slices) + 2) * NS
    assert seconds_of(list(track.slices)) == pytest.approx(ledger.total.seconds, abs=near)
    network = network_time(ledger)
    exposed_s, waiting_s = (0.0, 0.0) if network is None else (network.exposed_s, network.waiting_s)
    assert seconds_of(by_name[Occupation.NETWORK]) == pytest.approx(exposed_s, abs=near)
    assert seconds_of(by_name[Occupation.WAITING]) == pytest.approx(waiting_s, abs=near)


GROUP = ProcessGroup("0", "default_pg", (0, 1))
REDUCE = Call("c10d.allreduce_", "", (spec(1 << 20, argument="tensors"),), (), (("group", 0),))
CALLS = (mm_call(2, 3, 4), mm_call(512, 512, 512, "bfloat16"), mm_call(2048, 2048, 2048))
STREAMS = (0, 7, communicator_stream(0), communicator_stream(0, 1))


@st.composite
def rank_traces(draw: st.DrawFn, rank: int) -> Trace:
    """Products and collectives on four streams, which wait for each other at random."""
    builder = TraceBuilder()
    drawn = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20))
    streams = []
    for place, call in drawn:
        phase = draw(st.sampled_from((*Phase, Phase.FORWARD)))
        builder.run(REDUCE if place > 1 else CALLS[call], [-1, -1][: 1 + (place < 2)], phase=phase)
        streams.append(STREAMS[place])
        if draw(st.integers(0, 5)) == 0:
            builder.wait()
        if draw(st.integers(0, 9)) == 0:
            builder.end_step()
    trace = builder.build()
    ticks = st.integers(0, len(drawn))
    waits = draw(st.lists(st.tuples(ticks, st.sampled_from((-1, *STREAMS)), ticks), max_size=6))
    return replace(
        trace,
        ops=tuple(replace(op, stream=s) for op, s in zip(trace.ops, streams, strict=True)),
        world=World(2, 2, rank),
        groups=(GROUP,),
        stream_waits=tuple(
            StreamWait(tick, stream, draw(st.sampled_from(STREAMS)), min(until, tick))
            for tick, stream, until in sorted(waits)
        ),
    )


@given(rank_traces(0), rank_traces(1), st.booleans(), st.sampled_from((None, "all")))
def test_the_laws_hold_for_any_trace(
    trace: Trace, peer: Trace, is_alone: bool, step: str | None
) -> None:
    check_tracks(account(trace, roofline=H100, peers=() if is_alone else (peer,), step=step))


def model(layers: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(layers))).cuda()


def steps(module: nn.Module) -> None:
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(2):
        module(torch.ones(4096, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_ddp() -> None:
    dist.init_process_group("nccl")
    steps(DistributedDataParallel(model()))


def train_fsdp() -> None:
    dist.init_process_group("nccl")
    sharded = model()
    for layer in sharded:
        fully_shard(layer)
    steps(fully_shard(sharded))


@pytest.fixture(scope="module")
def ddp() -> Ledger:
    trace = torchtally.run(train_ddp, gpu="8xH100-SXM")
    return account(trace, roofline=H100)


def test_ddp(ddp: Ledger) -> None:
    """A stream that computes, and the communicator, which the optimizer waits for."""
    check_tracks(ddp)
    (rank,) = tracks_of(ddp)
    assert [track.name for track in rank.tracks] == ["step", "stream 0", "default_pg of 8"]
    reduction = rank.tracks[2].slices[-1]
    assert reduction.name == "c10d.allreduce_"
    assert reduction.details["group"] == "default_pg"
    assert reduction.details["ranks"] == 8
    assert [each.details["payload_bytes"] for each in rank.tracks[2].slices] == [
        entry.cost.network_bytes for entry in ddp.reported if entry.kind is Kind.COMMUNICATION
    ]
    assert str(reduction.details["line"]).startswith("test_tracks.py:")
    assert any(
        rank.tracks[arrow.from_track].stream and arrow.to_track == 1 for arrow in rank.arrows
    )
    assert max(held for _, held in rank.held[0].points) == ddp.memory.timeline.at(
        ddp.memory.peak_tick
    )


@pytest.mark.thorough
def test_fsdp_has_a_slice_for_each_gather() -> None:
    ledger = account(torchtally.run(train_fsdp, gpu="8xH100-SXM"), roofline=H100)
    check_tracks(ledger)
    (rank,) = tracks_of(ledger)
    gathers = [each for track in rank.tracks for each in track.slices if "allgather" in each.name]
    assert len(gathers) == sum("allgather" in entry.call.name for entry in ledger.reported)
    assert {each.details["module"] for each in gathers} >= {"0", "1", "2"}


def test_what_is_launched_together_is_one_slice() -> None:
    builder = TraceBuilder()
    for _ in range(3):
        builder.run(REDUCE, [-1])
    trace = replace(
        builder.build(),
        ops=tuple(replace(op, stream=STREAMS[2]) for op in builder.build().ops),
        world=World(2, 2, 0),
        groups=(GROUP,),
        coalesced=(Coalesced(0, 3),),
    )
    ledger = account(trace, roofline=H100)
    (rank,) = tracks_of(ledger)
    (reduction,) = rank.tracks[1].slices
    assert reduction.details["calls"] == 3
    assert reduction.details["payload_bytes"] == 3 * 4 * (1 << 20)
    assert seconds_of([reduction]) == pytest.approx(ledger.total.kernel_s, abs=2 * NS)


def test_a_slice_that_overlaps_is_found(ddp: Ledger) -> None:
    """The checker can fail."""
    assert len(overlaps(Track("x", (Slice("a", 0, 5), Slice("b", 4, 6), Slice("c", 6, 7))))) == 1
    stream = tracks_of(ddp)[0].tracks[1]
    with pytest.raises(AssertionError):
        check_step(Track("step", stream.slices[1:]), ddp)


def test_without_times_there_are_no_tracks(ddp: Ledger) -> None:
    with pytest.raises(UsageError, match="times are unknown"):
        tracks_of(account(ddp.trace))


def test_the_file_is_chromes_format(ddp: Ledger) -> None:
    """Every event has what its kind needs; arrows begin and end; microseconds keep nanoseconds."""
    document = json.loads(timeline_text(ddp, tracks_of(ddp)))
    assert document["otherData"]["chip"] == "H100-SXM"
    needed = {
        "M": {"name", "pid", "tid", "args"},
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "C": {"name", "pid", "ts", "args"},
        "s": {"name", "cat", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    }
    ids: dict[str, list[int]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert set(event) - {"ph"} == needed[event["ph"]]
        if event["ph"] in "sf":
            ids[event["ph"]].append(event["id"])
    assert ids["s"] == ids["f"] == list(range(1, len(ids["s"]) + 1))
    (rank,) = tracks_of(ddp)
    drawn = [each for track in (*rank.tracks, *rank.code) for each in track.slices]
    written = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [
        (event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in written
    ] == [(each.name, each.start_ns, each.end_ns - each.start_ns) for each in drawn]
