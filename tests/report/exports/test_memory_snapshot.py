"""A run as a memory snapshot: PyTorch's own addresses, and the rules of its viewers."""

import gzip
import json
import pickle
import pickletools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch.cuda import _memory_viz

import torchtally
from tests.builders import TraceBuilder, factory_call, frame, mm_call, site
from tests.truth.snapshot_case import main as snapshot_case
from tests.truth.snapshots import FILE
from tests.virtual.test_cuda_memory import VIEWER_OPCODES
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.profiles.history import trace_of_snapshot
from torchtally.profiles.snapshot import read_snapshot
from torchtally.report.exports import Wanted, export
from torchtally.timing.roofline import Roofline
from torchtally.trace import Measured, Reserved, Trace
from torchtally.views.memory_snapshot import memory_snapshot
from torchtally.views.summary import reserved_bytes_of

MIB = 1 << 20
Json = dict[str, Any]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The training that PyTorch's CUDA build recorded, too."""
    path = tmp_path_factory.mktemp("snapshot") / "ours.pickle"
    trace = torchtally.run(lambda: snapshot_case(str(path)), gpu="H100-SXM")
    return account(trace, roofline=Roofline(chip("H100-SXM")))


def placed(events: list[Json]) -> list[tuple[str, int, int, int]]:
    """(action, number of the segment, offset in it, bytes) of what is allocated, in order."""
    segments: list[Json] = []
    rows = []
    for event in events:
        if event["action"] == "segment_alloc":
            segments.append(event)
        if event["action"] not in ("alloc", "segment_alloc"):
            continue
        number = next(
            number
            for number, segment in enumerate(segments)
            if segment["addr"] <= event["addr"] < segment["addr"] + segment["size"]
        )
        offset = event["addr"] - segments[number]["addr"]
        rows.append((event["action"], number, offset, event["size"]))
    return rows


@pytest.mark.thorough
def test_every_allocation_is_where_pytorchs_cuda_build_has_it(case: Ledger) -> None:
    real = json.loads(gzip.decompress(FILE.read_bytes()))["snapshot"]["device_traces"][0]
    ours = memory_snapshot(case)
    assert ours.disagreements == ()
    rows = placed(ours.document["device_traces"][0])
    assert len(rows) == 206
    assert rows == placed(real)


def pickled(ledger: Ledger, wanted: Wanted | None = None) -> bytes:
    exported = export(ledger, "memory-snapshot", wanted)
    content = exported.parts[""]
    assert isinstance(content, bytes)
    return content


def test_the_viewers_unpickler_knows_every_instruction(case: Ledger) -> None:
    content = pickled(case)
    assert {opcode.name for opcode, _, _ in pickletools.genops(content)} <= VIEWER_OPCODES
    assert content[1] == 4


def test_the_round_trip_gives_the_peaks_of_the_run(case: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "ours.pickle"
    path.write_bytes(pickled(case))
    read = account(trace_of_snapshot(read_snapshot(str(path))), step="all")
    assert read.memory.peak_bytes == case.memory.peak_bytes
    assert reserved_bytes_of(read) == reserved_bytes_of(case)


class Viewer:
    """What torch/utils/viz/MemoryViz.js does with a snapshot, as far as it can fail.

    It walks from the end to the beginning, undoing events, and reads a block's segment unchecked.
    """

    def __init__(self, document: Json, device: int = 0) -> None:
        self.events = document["device_traces"][device]
        own = [segment for segment in document["segments"] if segment["device"] == device]
        self.segments = {segment["address"]: segment["total_size"] for segment in own}
        self.blocks = {
            block["address"]: block["requested_size"]
            for segment in own
            for block in segment["blocks"]
            if block["state"].startswith("active")
        }
        self.categories = {event["category"] for event in self.events if "category" in event}

    def walk(self) -> list[tuple[int, int]]:
        """(reserved, allocated) before each event, the first of them last."""
        assert not self.categories or "unknown" in self.categories
        held = [self._held()]
        for event in reversed(self.events):
            self._undo(event)
            held.append(self._held())
        return held

    def _held(self) -> tuple[int, int]:
        for address in self.blocks:
            assert any(at <= address < at + size for at, size in self.segments.items())
        return sum(self.segments.values()), sum(self.blocks.values())

    def _undo(self, event: Json) -> None:
        match event["action"]:
            case "free_completed":
                assert event["addr"] not in self.blocks
                self.blocks[event["addr"]] = event["size"]
            case "free_requested":
                assert event["addr"] in self.blocks
            case "alloc":
                del self.blocks[event["addr"]]
            case "segment_free":
                self.segments[event["addr"]] = event["size"]
            case "segment_alloc":
                del self.segments[event["addr"]]


def test_the_viewer_can_walk_back_from_the_end_to_the_beginning(case: Ledger) -> None:
    held = Viewer(memory_snapshot(case).document).walk()
    assert held[-1] == (0, 0)
    assert max(reserved for reserved, _ in held) == reserved_bytes_of(case)


def test_the_walk_finds_a_lost_event(case: Ledger) -> None:
    """The checker can fail."""
    document = memory_snapshot(case).document
    events = document["device_traces"][0]
    events.remove(next(event for event in events if event["action"] == "alloc"))
    with pytest.raises(AssertionError):
        assert Viewer(document).walk()[-1] == (0, 0)


def test_a_step_has_what_was_held_before_it(case: Ledger) -> None:
    """Only its events; blocks from before are in the segments, as when recording begins late."""
    step = account(case.trace, step=2, roofline=case.roofline)
    document = memory_snapshot(step, step.reported_period).document
    whole = memory_snapshot(case).document
    assert 0 < len(document["device_traces"][0]) < len(whole["device_traces"][0])
    reserved, allocated = Viewer(document).walk()[-1]
    memory, first = step.memory, step.reported_period.first
    assert reserved == max(
        (each.bytes for each in step.trace.reserved if each.tick < first), default=0
    )
    assert allocated == sum(storage.requested_bytes for storage, _ in memory.alive_at(first - 1))


def test_all_steps_are_the_whole_run(case: Ledger) -> None:
    """What is freed when the script ends included."""
    every = account(case.trace, step="all", roofline=case.roofline)
    assert pickled(every, Wanted(is_of_a_period=True)) == pickled(every)


def test_frames_are_operator_module_and_lines() -> None:
    builder = TraceBuilder()
    place = site(frame("net.py", 7), frame("train.py", 3), module="net.up", module_class="Linear")
    builder.run(mm_call(256, 256, 256), [-1, -1], site=place)
    event = alloc_of(builder.build())
    assert event["frames"] == [
        {"filename": "aten.mm", "line": 0, "name": "forward"},
        {"filename": "net.up", "line": 0, "name": "Linear"},
        {"filename": "net.py", "line": 7, "name": "main"},
        {"filename": "train.py", "line": 3, "name": "main"},
    ]
    assert event["size"] == 256 * 256 * 4
    assert event["user_metadata"] == "forward"


def alloc_of(trace: Trace) -> Json:
    events = memory_snapshot(account(trace)).document["device_traces"][0]
    event: Json = next(event for event in events if event["action"] == "alloc")
    return event


def test_a_run_that_reserved_otherwise_says_so() -> None:
    """The check can fail."""
    builder = TraceBuilder()
    builder.run(factory_call(MIB))  # 4 MiB: a segment of 20 MiB
    builder.reserved.append(Reserved("cuda:0", 0, 20 * MIB))
    assert memory_snapshot(account(builder.build())).disagreements == ()
    builder.reserved[-1] = Reserved("cuda:0", 0, 22 * MIB)
    (text,) = memory_snapshot(account(builder.build())).disagreements
    assert f"{20 * MIB} bytes reserved ({22 * MIB} in the run)" in text
    assert export(account(builder.build()), "memory-snapshot").remarks == (text,)


def test_a_run_beyond_the_chip_is_whole_although_it_reserved_otherwise() -> None:
    """Played on a chip of 80 GB it would end at its first request."""
    builder = TraceBuilder()
    builder.run(factory_call(1 << 35))  # 128 GiB
    builder.run(factory_call(1 << 35))
    builder.reserved.append(Reserved("cuda:0", 0, 1))
    snapshot = memory_snapshot(account(builder.build()))
    actions = [event["action"] for event in snapshot.document["device_traces"][0]]
    assert actions == ["segment_alloc", "alloc"] * 2 + ["snapshot"]
    assert len(snapshot.disagreements) == 1
    assert sum(segment["total_size"] for segment in snapshot.document["segments"]) == 1 << 38


def test_a_profile_without_memory_events_is_refused() -> None:
    builder = TraceBuilder()
    builder.run(mm_call(4, 4, 4), [-1, -1])
    measured = Measured("torch.profiler", "k.json", (), (), has_memory=False)
    ledger = account(structs.replace(builder.build(), measured=measured))
    with pytest.raises(UsageError, match="Record with profile_memory=True"):
        export(ledger, "memory-snapshot")


def out_of_memory() -> None:
    cached = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
    kept = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
    del cached
    with suppress(torch.OutOfMemoryError):
        torch.empty(70 << 30, dtype=torch.uint8, device="cuda")
    kept.zero_()


def test_running_out_of_memory_is_an_event() -> None:
    """What was cached is given back before the request is refused, as in the run."""
    trace = torchtally.run(out_of_memory, gpu="H100-SXM")
    assert trace.refusals
    snapshot = memory_snapshot(account(trace))
    assert snapshot.disagreements == ()
    actions = [event["action"] for event in snapshot.document["device_traces"][0]]
    assert actions == [
        "segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed",
        "segment_free", "oom", "free_requested", "free_completed", "snapshot",
    ]  # fmt: skip
    (oom,) = [e for e in snapshot.document["device_traces"][0] if e["action"] == "oom"]
    assert oom["size"] == 70 << 30
    assert Viewer(snapshot.document).walk()[2] == (30 << 30, 30 << 30)


def expanding() -> None:
    small = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    del small[2:18]
    torch.cuda.empty_cache()
    torch.stack(small)


def test_expandable_segments_are_mapped_and_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    snapshot = memory_snapshot(account(torchtally.run(expanding, gpu="H100-SXM")))
    assert snapshot.disagreements == ()
    actions = {event["action"] for event in snapshot.document["device_traces"][0]}
    assert {"segment_map", "segment_unmap"} <= actions
    assert snapshot.document["allocator_settings"]["expandable_segments"] is True


def test_pytorchs_own_tools_take_it(case: Ledger) -> None:
    document = pickle.loads(pickled(case))
    assert "cudaMalloc" in _memory_viz.trace(document)
    document = memory_snapshot(case, case.course.single(case.course.steps[0])).document
    assert "snapshot_case.py:23:Block.forward" in _memory_viz.segments(document, lambda text: text)
    assert len(_memory_viz.trace_plot(document)) > 10_000


@pytest.mark.parametrize("text", ["</script>", "a\nb", "\x00\x1b[31m", "é\udcff", "'\"%s"])
def test_hostile_names_stay_text(text: str) -> None:
    builder = TraceBuilder()
    place = site(frame(f"{text}.py", 7), module=text, module_class=text)
    builder.run(mm_call(256, 256, 256), [-1, -1], site=place)
    content = pickled(account(builder.build()))
    assert {opcode.name for opcode, _, _ in pickletools.genops(content)} <= VIEWER_OPCODES
    assert pickle.loads(content)["device_traces"][0][0]["frames"][1]["name"] == text
