"""`torch.cuda.memory`: figures, snapshots and histories as the real allocator would give them."""

import gc
import pickle
import pickletools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchtally
from torchtally.errors import UsageError
from torchtally.virtual.session import VirtualGPU

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

QUANTITIES = """
    allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes
    allocation segment active inactive_split
    """.split()
KEYS = {
    *(
        f"{quantity}.{pool}.{figure}"
        for quantity in QUANTITIES
        for pool in ("all", "small_pool", "large_pool")
        for figure in ("current", "peak", "allocated", "freed")
    ),
    *(
        f"oversize_{what}.{figure}"
        for what in ("allocations", "segments")
        for figure in ("current", "peak", "allocated", "freed")
    ),
    *("num_alloc_retries", "num_ooms", "num_sync_all_streams"),
    *("num_device_alloc", "num_device_free", "max_split_size"),
}
"""As documented for torch.cuda.memory_stats, with what its source adds."""

VIEWER_OPCODES = frozenset(
    """
    PROTO FRAME MARK STOP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE
    """.split()
)
"""What the unpickler of docs.pytorch.org/memory_viz knows."""


def books_broken() -> list[str]:
    """Where statistics and snapshot disagree; empty when all is well."""
    gc.disable()  # nothing is freed between the two
    stats, segments = torch.cuda.memory_stats(), torch.cuda.memory_snapshot()
    gc.enable()
    sums = {
        "allocated_bytes.all.current": sum(segment["allocated_size"] for segment in segments),
        "reserved_bytes.all.current": sum(segment["total_size"] for segment in segments),
        "active_bytes.all.current": sum(segment["active_size"] for segment in segments),
        "requested_bytes.all.current": sum(segment["requested_size"] for segment in segments),
        "allocation.all.current": sum(
            block["state"] == "active_allocated"
            for segment in segments
            for block in segment["blocks"]
        ),
    }
    broken = [f"{name}: {stats[name]}, not {value}" for name, value in sums.items()
              if stats[name] != value]  # fmt: skip
    end = 0
    for segment in segments:
        address = segment["address"]
        if address < end:
            broken.append(f"segments overlap at {address:x}")
        end = address + segment["total_size"]
        if sum(block["size"] for block in segment["blocks"]) != segment["total_size"]:
            broken.append(f"the blocks at {address:x} are not their segment")
        for block in segment["blocks"]:
            if block["address"] != address:
                broken.append(f"a gap at {address:x}")
            address += block["size"]
    return broken


@pytest.fixture
def watched(gpu: VirtualGPU) -> Iterator[VirtualGPU]:
    """A simulated GPU whose books must add up in the end."""
    yield gpu
    assert books_broken() == []


# Figures ---------------------------------------------------------------------------------------


def test_the_keys_of_memory_stats_are_torchs(watched: VirtualGPU) -> None:
    assert set(torch.cuda.memory_stats()) == KEYS
    x = torch.zeros(300, device="cuda")
    stats = torch.cuda.memory_stats()
    assert set(stats) == KEYS
    assert stats["requested_bytes.all.current"] == 1200
    assert stats["allocated_bytes.all.current"] == 1536
    assert stats["reserved_bytes.small_pool.current"] == 2 * MIB
    assert stats["inactive_split_bytes.all.current"] == 2 * MIB - 1536
    assert stats["max_split_size"] == -1
    assert x.numel() == 300


def test_memory_summary_prints_every_figure(watched: VirtualGPU) -> None:
    x = torch.zeros(3 * MIB, device="cuda")
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text
    row = next(line for line in text.splitlines() if line.startswith("| Allocated memory"))
    assert [cell.strip() for cell in row.split("|")[2:6]] == [
        *("12288 KiB", "12288 KiB", "12288 KiB"),
        "0 B",
    ]
    assert x.numel() == 3 * MIB
    assert "CUDA OOMs: 0" in torch.cuda.memory_summary(abbreviated=True)


def test_empty_cache_gives_back_what_nobody_holds(watched: VirtualGPU) -> None:
    kept = torch.zeros(5 * MIB, device="cuda")
    torch.zeros(10 * MIB, device="cuda")
    assert torch.cuda.memory_reserved() == 60 * MIB
    free, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == kept.untyped_storage().nbytes() == 20 * MIB
    assert torch.cuda.max_memory_reserved() == 60 * MIB
    assert torch.cuda.mem_get_info() == (free + 40 * MIB, total)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_reserved() == 20 * MIB


def test_free_and_reserved_are_the_device_less_the_context(watched: VirtualGPU) -> None:
    free, total = torch.cuda.mem_get_info()
    assert total - free == 600 * MIB
    kept = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info() == (free - GIB, total)
    assert torch.cuda.mem_get_info(kept.device) == (free - GIB, total)


def test_a_memory_fraction_is_a_limit(watched: VirtualGPU) -> None:
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    half = torch.cuda.get_device_properties(0).total_memory // 2
    kept = torch.empty(half - 40 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"GiB allowed; Of the allocated memory"):
        torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    assert kept.numel() == half - 40 * MIB
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    for fraction, error in ((2.0, ValueError), (1, TypeError)):
        with pytest.raises(error):
            torch.cuda.set_per_process_memory_fraction(fraction)


@pytest.mark.filterwarnings("ignore:torch.cuda._set_allocator_settings is deprecated")
def test_settings_change_while_it_runs(watched: VirtualGPU) -> None:
    first = torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    second = torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
    expandable = [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()]
    assert sorted(expandable) == [False, True]
    assert torch.cuda.memory_reserved() == (30 + 40) * MIB  # pages of 20 MiB
    with pytest.raises(UsageError, match="unknown option 'foo'"):
        torch.cuda.memory._set_allocator_settings("foo:1")
    assert first.numel() == second.numel()


# Lives -----------------------------------------------------------------------------------------


def test_a_storage_resized_takes_the_new_block_before_it_gives_the_old_one(
    watched: VirtualGPU,
) -> None:
    x = torch.zeros(1024, device="cuda")
    x.untyped_storage().resize_(8192)
    assert torch.cuda.memory_allocated() == 8192
    assert torch.cuda.max_memory_allocated() == 4096 + 8192
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == 0
    x.untyped_storage().resize_(512)
    assert torch.cuda.memory_allocated() == 512
    del x
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize(("is_emptied", "with_view"), [(False, 5), (True, 1)])
def test_a_tensor_gets_another_storage_while_a_view_of_its_first_one_lives(
    watched: VirtualGPU, is_emptied: bool, with_view: int
) -> None:
    x, other = torch.zeros(4 * MIB, device="cuda"), torch.zeros(MIB, device="cuda")
    view = x.view(-1)
    if is_emptied:
        x.untyped_storage().resize_(0)
    x.set_(other)  # type: ignore[call-overload]
    assert torch.cuda.memory_allocated() == with_view * 4 * MIB
    assert x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    del view
    assert torch.cuda.memory_allocated() == 4 * MIB
    del other
    assert torch.cuda.memory_allocated() == 4 * MIB
    x.set_()  # type: ignore[call-overload]
    assert torch.cuda.memory_allocated() == 0


def test_streams_allocate_from_their_own_segments(watched: VirtualGPU) -> None:
    side = torch.cuda.Stream()
    first = torch.zeros(1, device="cuda")
    with torch.cuda.stream(side):
        second = torch.zeros(1, device="cuda")
    streams = {segment["stream"] for segment in torch.cuda.memory_snapshot()}
    assert streams == {0, side.cuda_stream}
    assert torch.cuda.memory_reserved() == 4 * MIB
    address = second.data_ptr()
    del second
    third = torch.zeros(1, device="cuda")
    assert third.data_ptr() == first.data_ptr() + 512
    with torch.cuda.stream(side):
        assert torch.zeros(1, device="cuda").data_ptr() == address


def test_a_recorded_stream_keeps_a_block_until_the_device_was_waited_for(
    watched: VirtualGPU,
) -> None:
    x = torch.zeros(3 * MIB, device="cuda")
    address = x.data_ptr()
    x.record_stream(torch.cuda.Stream())
    del x
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["active_bytes.all.current"] == 12 * MIB
    states = {
        block["state"] for record in torch.cuda.memory_snapshot() for block in record["blocks"]
    }
    assert states == {"active_pending_free"}
    y = torch.zeros(3 * MIB, device="cuda")
    assert y.data_ptr() != address
    torch.cuda.synchronize()
    assert torch.zeros(3 * MIB, device="cuda").data_ptr() == address
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 12 * MIB


def test_bare_addresses_are_allocated_and_deleted(watched: VirtualGPU) -> None:
    address = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == 1024
    other = torch.cuda.caching_allocator_alloc(1000)
    assert other == address + 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 1024
    torch.cuda.caching_allocator_delete(other)
    assert torch.cuda.memory_allocated() == 0
    side = torch.cuda.Stream()
    address = torch.cuda.caching_allocator_alloc(1000, stream=side)
    first, second = torch.cuda.memory_snapshot()
    assert (first["stream"], first["allocated_size"]) == (0, 0)
    assert (second["stream"], second["allocated_size"]) == (side.cuda_stream, 1024)
    torch.cuda.caching_allocator_delete(address)


def test_garbage_collected_within_an_allocation_is_freed_after_it(watched: VirtualGPU) -> None:
    """Tensors in cycles die when Python collects: here at every new object."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for size in range(1, 60):
            cycle: list[Any] = [torch.zeros(100 * size, device="cuda")]
            cycle.append(cycle)
            torch.ones(200 * size, device="cuda") + cycle[0].sum()
            assert books_broken() == []
    finally:
        gc.set_threshold(*before)
    del cycle
    gc.collect()
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_threads_share_one_allocator(watched: VirtualGPU) -> None:
    """Four threads hold up to three tensors each; 2.5 MB at most, and in the end nothing."""
    broken: list[BaseException] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            start.wait()
            kept: list[torch.Tensor] = []
            for number in range(60):
                kept.append(
                    torch.zeros(1 + (seed * 7919 + number * 104729) % 50_000, device="cuda")
                )
                del kept[:-3]
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert books_broken() == []
    assert torch.cuda.memory_allocated() == 0
    assert 0 < torch.cuda.max_memory_allocated() <= 4 * 4 * 200_192
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 4 * 60


def test_a_tensor_freed_in_another_thread(watched: VirtualGPU) -> None:
    held = [torch.zeros(1000, device="cuda")]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert torch.cuda.memory_allocated() == 0


class Interrupted:
    """A lock at whose release, still held, another thread lets go of what is in a list."""

    def __init__(self, lock: Any, held: list[torch.Tensor]) -> None:
        self.lock, self.held = lock, held

    def acquire(self, *, blocking: bool = True) -> bool:
        return bool(self.lock.acquire(blocking=blocking))

    def release(self) -> None:
        thread = threading.Thread(target=self.held.clear)
        thread.start()
        thread.join()
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def test_a_free_at_the_last_moment_of_an_allocation_is_not_forgotten(watched: VirtualGPU) -> None:
    memory = watched.mode.gpus[0]
    memory._lock = Interrupted(memory._lock, [torch.zeros(1000, device="cuda")])  # type: ignore[assignment]
    kept = torch.zeros(10, device="cuda")
    assert torch.cuda.memory_allocated() == 512
    assert kept.numel() == 10


def test_what_dies_within_a_refused_allocation_is_freed(watched: VirtualGPU) -> None:
    memory = watched.mode.gpus[0]
    memory._lock = Interrupted(memory._lock, [torch.zeros(1000, device="cuda")])  # type: ignore[assignment]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(200 * GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 0


def test_books_that_are_wrong_are_noticed(gpu: VirtualGPU) -> None:
    x = torch.zeros(1000, device="cuda")
    assert books_broken() == []
    gpu.mode.gpus[0].allocator.statistics.all.bytes += 512
    assert books_broken() == [
        "allocated_bytes.all.current: 4608, not 4096",
        "active_bytes.all.current: 4608, not 4096",
    ]
    gpu.mode.gpus[0].allocator.statistics.all.bytes -= 512
    assert x.numel() == 1000


# Snapshots -------------------------------------------------------------------------------------


def test_segments_of_a_snapshot(watched: VirtualGPU) -> None:
    x = torch.zeros(100, device="cuda")
    y = torch.zeros(3 * MIB // 4, device="cuda")
    small, large = sorted(torch.cuda.memory_snapshot(), key=lambda record: record["total_size"])
    assert (small["total_size"], small["segment_type"]) == (2 * MIB, "small")
    assert (large["total_size"], large["segment_type"]) == (20 * MIB, "large")
    assert [
        (block["size"], block["requested_size"], block["state"]) for block in small["blocks"]
    ] == [(512, 400, "active_allocated"), (2 * MIB - 512, 0, "inactive")]
    assert small["blocks"][0]["address"] == x.data_ptr()
    assert large["blocks"][0]["address"] == y.data_ptr()
    assert (large["allocated_size"], large["active_size"], large["requested_size"]) == (
        *(3 * MIB, 3 * MIB),
        3 * MIB,
    )
    for segment in (small, large):
        assert segment["device"] == 0
        assert 0 < segment["address"] < 2**53  # a JavaScript number keeps it
    assert set(small) >= {
        *("device", "address", "total_size", "allocated_size", "active_size", "requested_size"),
        *("stream", "segment_type", "segment_pool_id", "is_expandable", "blocks", "frames"),
    }


def make(elements: int) -> torch.Tensor:
    return torch.zeros(elements, device="cuda")


def recorded() -> tuple[torch.Tensor, dict[str, Any]]:
    """A tensor kept, one gone, one that found no room; the snapshot of it."""
    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept = make(100)
    make(3 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        make(30 * GIB)
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    make(50)
    return kept, snapshot


def test_a_history_has_every_event_in_order(watched: VirtualGPU) -> None:
    kept, snapshot = recorded()
    (trace,) = snapshot["device_traces"]
    assert [(record["action"], record["size"]) for record in trace] == [
        ("segment_alloc", 2 * MIB),
        ("alloc", 400),
        ("segment_alloc", 12 * MIB),
        ("alloc", 12 * MIB),
        ("free_requested", 12 * MIB),
        ("free_completed", 12 * MIB),
        ("segment_free", 12 * MIB),  # before it was refused, the cache was given back
        ("oom", 120 * GIB),
    ]
    assert trace[1]["addr"] == trace[0]["addr"] == kept.data_ptr()
    assert len({record["addr"] for record in trace[2:7]}) == 1
    refused = trace[-1]
    assert refused["device_free"] == torch.cuda.mem_get_info()[0]
    assert "addr" not in refused
    times = [record["time_us"] for record in trace]
    assert times == sorted(times)
    assert {record["stream"] for record in trace} == {0}


def test_a_history_names_the_users_lines(watched: VirtualGPU) -> None:
    _, snapshot = recorded()
    frames = snapshot["device_traces"][0][1]["frames"]
    assert [frame["name"] for frame in frames[:2]] == ["make", "recorded"]
    assert all(frame["filename"] == __file__ for frame in frames[:2])
    assert frames[0]["line"] == make.__code__.co_firstlineno + 1


def test_live_blocks_of_a_history_are_in_the_segments(watched: VirtualGPU) -> None:
    torch.cuda.memory._record_memory_history()
    kept = [make(size) for size in (10, 1000, 300_000, 3_000_000)]
    del kept[1]
    snapshot = torch.cuda.memory._snapshot()
    live: dict[int, int] = {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
    blocks = {
        block["address"]: block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert live == blocks
    assert sorted(live) == sorted(tensor.data_ptr() for tensor in kept)
    assert max(live) < 2**53
    torch.cuda.memory._record_memory_history(enabled=None)


def test_a_history_keeps_the_last_entries_alone(watched: VirtualGPU) -> None:
    torch.cuda.memory._record_memory_history(max_entries=3)
    for size in (1, 2, 3):
        make(size)
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    assert [(record["action"], record["size"]) for record in trace] == [
        ("alloc", 12), ("free_requested", 12), ("free_completed", 12)
    ]  # fmt: skip
    torch.cuda.memory._record_memory_history(enabled=None)


def test_settings_are_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "expandable_segments:True,max_split_size_mb:40"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", text)
    with torchtally.virtual_gpu("H100-SXM"):
        kept = make(3 * MIB)
        snapshot = torch.cuda.memory._snapshot()
        settings = snapshot["allocator_settings"]
        assert settings["PYTORCH_CUDA_ALLOC_CONF"] == text
        assert (settings["expandable_segments"], settings["max_split_size"]) == (True, 40 * MIB)
        assert [segment["is_expandable"] for segment in snapshot["segments"]] == [True]
        assert kept.numel() == 3 * MIB
        assert books_broken() == []


# Files -----------------------------------------------------------------------------------------


def opcodes(data: bytes) -> set[str]:
    return {opcode.name for opcode, _, _ in pickletools.genops(data)}


def test_a_dumped_snapshot_is_one_the_viewer_reads(watched: VirtualGPU, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history()
    kept = [make(size) for size in (1, 1000, 300_000, 3_000_000)]
    with pytest.raises(torch.OutOfMemoryError):
        make(30 * GIB)
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    torch.cuda.memory._record_memory_history(enabled=None)
    data = file.read_bytes()
    assert opcodes(data) <= VIEWER_OPCODES
    protocol = next(arg for opcode, arg, _ in pickletools.genops(data) if opcode.name == "PROTO")
    assert protocol is not None
    assert protocol <= 4
    loaded = pickle.loads(data)
    assert loaded["device_traces"][0][-1]["action"] == "oom"
    assert (
        sum(segment["allocated_size"] for segment in loaded["segments"])
        == torch.cuda.memory_allocated()
    )
    assert len(kept) == 4


def test_a_file_the_viewer_does_not_read_is_noticed() -> None:
    assert not opcodes(pickle.dumps({1, 2}, protocol=4)) <= VIEWER_OPCODES
    assert not opcodes(pickle.dumps(Path("x"), protocol=4)) <= VIEWER_OPCODES
    assert opcodes(pickle.dumps({"a": [1, 2**40, None, "x" * 300]}, protocol=4)) <= VIEWER_OPCODES
