"""Memory snapshots: PyTorch's own, to the byte, and files that want to run something."""

import gzip
import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.truth.snapshots import FILE
from torchtally.errors import TraceFileError
from torchtally.ledger import Ledger, account
from torchtally.memory import Category
from torchtally.memory.allocator import AllocatorSettings, replay
from torchtally.memory.allocator.replay import Replayed
from torchtally.profiles.history import EARLIER, trace_of_snapshot
from torchtally.profiles.snapshot import is_pickle, read_snapshot
from torchtally.report.formats import render
from torchtally.report.report import Look
from torchtally.report.snapshot import snapshot_report
from torchtally.trace import Trace
from torchtally.views import allocators
from torchtally.views.summary import reserved_bytes_of

Json = dict[str, Any]


@pytest.fixture(scope="module")
def recorded() -> Json:
    document: Json = json.loads(gzip.decompress(FILE.read_bytes()))
    return document


def explained(tmp_path: Path, snapshot: Json) -> tuple[Trace, Ledger]:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    trace = trace_of_snapshot(read_snapshot(str(path)))
    ledger = account(trace, step="all")
    ledger.check()
    return trace, ledger


def test_a_snapshot_of_pytorchs_cuda_build_is_explained_to_the_byte(
    tmp_path: Path, recorded: Json
) -> None:
    trace, ledger = explained(tmp_path, recorded["snapshot"])
    said = recorded["said"]
    assert ledger.memory.peak_bytes == said["peak_allocated_bytes"]
    assert reserved_bytes_of(ledger) == said["peak_reserved_bytes"]
    assert ledger.memory.timeline.at(trace.end) == said["allocated_bytes"]
    assert trace.reserved[-1].bytes == said["reserved_bytes"]
    modelled = replay(trace)
    assert modelled.peak_allocated_bytes == said["peak_allocated_bytes"]
    assert modelled.peak_reserved_bytes == said["peak_reserved_bytes"]


def test_holders_are_named_by_line_and_by_what_frames_tell(tmp_path: Path, recorded: Json) -> None:
    _, ledger = explained(tmp_path, recorded["snapshot"])
    at_peak = dict(ledger.memory.at_peak)
    parameters = 2 * (256 * 1024 * 2 + 1024 + 256 + 2 * 256) + 256 * 5003 + 5003
    # In blocks of 512: only the last bias (5003 floats) is not a multiple.
    assert at_peak[Category.PARAMETERS] == 4 * parameters + (-4 * 5003) % 512
    assert at_peak[Category.OPTIMIZER_STATE] == 2 * at_peak[Category.PARAMETERS]
    document = json.loads(render(snapshot_report(ledger), "json", Look()))
    places = {(str(row["file"]), row["line"]) for row in document["tables"]["peak-line"]["rows"]}
    assert any(file.endswith("snapshot_case.py") and line == 23 for file, line in places)


def test_other_settings_are_replayed_on_its_requests(tmp_path: Path, recorded: Json) -> None:
    trace, _ = explained(tmp_path, recorded["snapshot"])
    settings = AllocatorSettings.parse("expandable_segments:True")
    expandable = replay(trace, settings=settings)
    said = recorded["said"]
    # Rests that are too small to split off are fewer where segments grow.
    assert 0.99 < expandable.peak_allocated_bytes / said["peak_allocated_bytes"] <= 1
    assert expandable.peak_reserved_bytes < said["peak_reserved_bytes"]


def test_the_requests_are_played_once_for_each_of_the_settings(
    tmp_path: Path, recorded: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a chip that holds them all, too; and how far it is is told."""
    played: list[AllocatorSettings | None] = []

    def counted(trace: Trace, **options: Any) -> Replayed:
        played.append(options.get("settings"))
        return replay(trace, **options)

    monkeypatch.setattr(allocators, "replay", counted)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(recorded["snapshot"]))
    trace = trace_of_snapshot(read_snapshot(str(path)), "H100-SXM")
    shares: list[float] = []
    snapshot_report(account(trace, step="all"), on_played=shares.append)
    assert len(played) == len(shares) == 5
    assert shares == sorted(shares)


def test_a_stack_is_read_once(tmp_path: Path) -> None:
    """Of rows that a pickle shares, as torch's do."""
    frame = {"filename": "train.py", "line": 3, "name": "step"}
    row = {"action": "alloc", "size": 512, "stream": 0}
    events = [row | {"addr": 512 * n, "frames": [frame, frame]} for n in range(9)]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    snapshot = read_snapshot(str(path))
    assert len(snapshot.events) == 9
    assert len({id(event.frames) for event in snapshot.events}) == 1
    assert snapshot.events[0].frames == (("train.py", 3, "step"),) * 2
    assert len(trace_of_snapshot(snapshot).sites) == 2  # none, and that one


def test_a_history_that_begins_late_has_what_was_held_before(
    tmp_path: Path, recorded: Json
) -> None:
    snapshot = json.loads(json.dumps(recorded["snapshot"]))
    events = snapshot["device_traces"][0]
    snapshot["device_traces"] = [events[len(events) // 2 :]]
    trace, ledger = explained(tmp_path, snapshot)
    said = recorded["said"]
    assert any(storage.name == EARLIER for storage in trace.storages)
    # At the end all is known again, but for the rests of split blocks.
    assert ledger.memory.timeline.at(trace.end) == pytest.approx(said["allocated_bytes"], rel=0.01)
    assert trace.reserved[-1].bytes == said["reserved_bytes"]


def test_a_simulated_snapshot_is_read_back(tmp_path: Path) -> None:
    import torch

    from torchtally.virtual.session import virtual_gpu

    path = tmp_path / "ours.pickle"
    with virtual_gpu("H100-SXM"):
        torch.cuda.memory._record_memory_history()
        kept = [torch.zeros(1000, 1000, device="cuda") for _ in range(3)]
        del kept[1]
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.memory._dump_snapshot(str(path))
    ledger = account(trace_of_snapshot(read_snapshot(str(path))), step="all")
    assert ledger.memory.peak_bytes == peak


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Evil(marker)]}))
    with pytest.raises(TraceFileError, match="would import"):
        read_snapshot(str(path))
    assert not marker.exists()


EVENT = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "frames": []}
BROKEN: dict[str, object] = {
    "a list": [],
    "no segments": {"device_traces": []},
    "segments of another type": {"segments": 5},
    "an event without a size": {"segments": [], "device_traces": [[{"action": "alloc"}]]},
    "a negative size": {"segments": [], "device_traces": [[{**EVENT, "size": -5}]]},
    "a huge size": {"segments": [], "device_traces": [[{**EVENT, "size": 1 << 80}]]},
    "a size that is a text": {"segments": [], "device_traces": [[{**EVENT, "size": "x"}]]},
    "an unknown action": {"segments": [], "device_traces": [[{**EVENT, "action": "x"}]]},
    "frames of another type": {"segments": [], "device_traces": [[{**EVENT, "frames": [1]}]]},
    "events of another type": {"segments": [], "device_traces": [[7]]},
}


@pytest.mark.parametrize("document", BROKEN.values(), ids=BROKEN)
def test_a_broken_snapshot_gives_one_clear_error(tmp_path: Path, document: object) -> None:
    path = tmp_path / "broken.pickle"
    path.write_bytes(pickle.dumps(document))
    with pytest.raises(TraceFileError, match=r"broken\.pickle: not a memory snapshot"):
        read_snapshot(str(path))


@pytest.mark.parametrize("content", [b"\x80\x04", b"\x80\x04}", b"\x80\x05\x95" + b"\xff" * 8])
def test_a_pickle_cut_short_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cut.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceFileError):
        read_snapshot(str(path))


def test_a_few_bytes_that_ask_for_gigabytes_are_refused(tmp_path: Path) -> None:
    """The place in a pickle's memo of what it has read: a table of as many pointers."""
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x02]r" + (400_000_000).to_bytes(4, "little") + b".")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(TraceFileError, match=r"PyTorch's .MemoryError"):
        read_snapshot(str(path))
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_pipe_that_no_process_writes_to_is_no_snapshot(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_pickle(str(tmp_path / "pipe"))
