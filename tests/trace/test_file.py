"""A trace file comes back as it was written, or is refused with a message; nothing in between."""

import json
import os
import stat
import tracemalloc
import zlib
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import TraceBuilder, copy_in_call, frame, mm_call, site, spec
from tests.strategies import traces
from torchtally.errors import OutputError, TraceFileError
from torchtally.trace import Call, Refusal, Trace, decoding
from torchtally.trace import file as trace_file
from torchtally.trace.decoding import decoded_bytes_at_most
from torchtally.trace.file import FORMAT
from torchtally.trace.trace import Packed, encode, pack, unpack

RELAXED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


def small_trace() -> Trace:
    builder = TraceBuilder()
    a, b = builder.allocate(24), builder.allocate(48)
    here = site(frame(line=3), frame(line=9), module="net.0", module_class="Linear")
    product = builder.run(mm_call(2, 3, 4), (a, b), site=here)
    builder.free(product)
    builder.wait()
    builder.run(mm_call(2, 3, 4), (a, b), site=here)
    builder.end_step()
    return builder.build()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.tally"
    small_trace().save(path)
    return path


@given(trace=traces())
@RELAXED
def test_what_is_written_is_read(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.tally"
    trace.save(path)
    again = Trace.load(path)
    assert again == trace


def test_ops_share_calls_and_sites_share_frames(file: Path) -> None:
    trace = Trace.load(file)
    assert [(op.call, op.site) for op in trace.ops] == [(0, 0), (0, 0)]
    assert (len(trace.calls), len(trace.sites)) == (1, 1)


def test_a_frame_of_two_sites_is_stored_once() -> None:
    builder = TraceBuilder()
    for line in (3, 4):
        builder.run(mm_call(2, 3, 4), (-1, -1), site=site(frame(line=line), frame(line=9)))
    packed = pack(builder.build())
    assert [frame.line for frame in packed.frames] == [3, 9, 4]
    assert packed.sites == (("", "", (0, 1)), ("", "", (2, 1)))
    assert unpack(packed) == builder.build()


def test_literals_come_back_as_tuples(tmp_path: Path) -> None:
    call = Call("aten.x", "", (), (), (("dim", (0, 1)), ("keepdim", True), ("eps", None)))
    builder = TraceBuilder()
    builder.run(call)
    builder.build().save(tmp_path / "run.tally")
    assert Trace.load(tmp_path / "run.tally").calls[0].literals == call.literals


def test_pinned_and_pageable_sources_stay_apart(tmp_path: Path) -> None:
    builder = TraceBuilder()
    calls = [copy_in_call(8), copy_in_call(8, is_pinned=True), copy_in_call(8)]
    for call in calls:
        builder.run(call, (-1,))
    builder.build().save(tmp_path / "run.tally")
    trace = Trace.load(tmp_path / "run.tally")
    assert [op.call for op in trace.ops] == [0, 1, 0]
    assert trace.calls == tuple(calls[:2])


def test_a_file_name_that_is_not_utf8_is_spelled_out(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.run(mm_call(1, 1, 1), (0, 0), site=site(frame("caf\udce9.py")))
    builder.build(script="caf\udce9.py").save(tmp_path / "run.tally")
    trace = Trace.load(tmp_path / "run.tally")
    assert trace.script == trace.sites[0].frames[0].file == r"caf\udce9.py"
    assert len(trace.ops) == 1


def test_the_first_line_is_readable(file: Path) -> None:
    line = file.read_bytes().split(b"\n")[0].decode("ascii")
    assert line.startswith(f"torchtally trace format={FORMAT} packed=")
    assert len(line) < 120


# Refusals --------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(TraceFileError) as caught:
        Trace.load(path)
    message = str(caught.value)
    assert str(path) in message
    return message


def test_a_missing_file_is_called_missing(tmp_path: Path) -> None:
    message = refusal(tmp_path / "none.tally")
    assert "no such file" in message
    assert "tally run" in message


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"import torch\n", b"\x00" * 500, b"{}", b"torchtallx trace"])
def test_something_else_is_not_a_trace(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "not a trace" in refusal(path)


@pytest.mark.parametrize("kept", [0, 5, 30, 80, 200])
def test_a_file_cut_in_two_is_called_cut_short(file: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])
    assert "cut short" in refusal(file)


def test_a_newer_format_asks_for_an_upgrade(file: Path) -> None:
    newer = b"format=%d " % (FORMAT + 1)
    file.write_bytes(file.read_bytes().replace(b"format=%d " % FORMAT, newer, 1))
    message = refusal(file)
    assert (
        f"written by a newer torchtally (format {FORMAT + 1}, this one reads {FORMAT})" in message
    )
    assert "Upgrade" in message


SCHEMA = (15, "b8f3e1aa0ad610bd")
"""The format, and the digest of what its body may hold."""


def without_prose(schema: object) -> object:
    if isinstance(schema, list):
        return [without_prose(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_prose(schema[key]) for key in schema if key != "description"}


def test_whatever_changes_the_schema_raises_the_format() -> None:
    """An older tally that met a kind of effect which it does not know called the file damaged."""
    text = json.dumps(without_prose(msgspec.json.schema(Packed)), sort_keys=True)
    assert "refused-write" in text
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    assert (FORMAT, digest) == SCHEMA, "raise FORMAT by one, and write both here"


@pytest.mark.parametrize("older", [0, 5, 9])
def test_an_older_format_is_refused(file: Path, older: int) -> None:
    file.write_bytes(file.read_bytes().replace(b"format=%d " % FORMAT, b"format=%d " % older, 1))
    message = refusal(file)
    assert f"format {older} is too old; this torchtally reads format {FORMAT}" in message
    assert "Record the trace again" in message


def test_bytes_after_the_end_are_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")
    assert "longer than" in refusal(file)


def test_every_truncation_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for kept in range(len(whole)):
        file.write_bytes(whole[:kept])
        assert str(file) in refusal(file)


def test_every_changed_byte_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for place in range(len(whole)):
        for flip in (0x01, 0x20, 0x80):
            changed = bytearray(whole)
            changed[place] ^= flip
            file.write_bytes(changed)
            assert str(file) in refusal(file)


@given(content=st.binary(max_size=300))
@RELAXED
def test_random_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "random"
    path.write_bytes(content)
    assert str(path) in refusal(path)


def sealed(body: bytes) -> bytes:
    """A file whose sizes and digest are right, whatever is in it."""
    packed = zlib.compress(body)
    digest = trace_file._digest(packed)
    return trace_file._header(trace_file.FORMAT, len(packed), len(body), digest) + packed


@given(body=st.binary(max_size=200))
@RELAXED
def test_a_well_sealed_body_of_random_bytes_is_refused(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "random"
    path.write_bytes(sealed(body))
    assert "corrupted" in refusal(path)


@given(data=st.data())
@RELAXED
def test_a_well_sealed_changed_body_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    body = bytearray(encode(pack(small_trace())))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed"
    path.write_bytes(sealed(bytes(body)))
    try:
        trace = Trace.load(path)
    except TraceFileError:
        return
    assert isinstance(trace, Trace)


OP, PRODUCT, STORAGE = small_trace().ops[1], mm_call(2, 3, 4), small_trace().storages[-1]
REFUSAL = Refusal("cuda:0", 0, 1, 0, 0, 0, 0, "")


@pytest.mark.parametrize(
    ("table", "row", "why"),
    [
        ("ops", replace(OP, call=1), "a call is referred to"),
        ("ops", replace(OP, call=-1), "`int` >= 0"),
        ("ops", replace(OP, site=1), "a site is referred to"),
        ("ops", replace(OP, inputs=(0, 9)), "a storage that does not exist"),
        ("ops", replace(OP, outputs=(-2,)), "a storage that does not exist"),
        ("ops", replace(OP, inputs=(0,)), "do not match its call"),
        ("ops", replace(OP, outputs=()), "do not match its call"),
        ("ops", replace(OP, clock=0), "backwards"),
        ("ops", replace(OP, clock=1 << 60), "`int` <="),
        ("ops", replace(OP, phase="sideways"), "'sideways'"),
        ("calls", replace(PRODUCT, outputs=(replace(spec(4), shape=(2, 2)),)), "strides"),
        ("calls", replace(PRODUCT, outputs=(replace(spec(4), shape=(-4,)),)), "shape"),
        ("calls", replace(PRODUCT, outputs=(replace(spec(4), shape=(1 << 63,)),)), "int64"),
        ("calls", replace(PRODUCT, literals=(("eps", 0.5),)), "float"),
        ("storages", replace(STORAGE, requested_bytes=-1), "`int` >= 0"),
        ("storages", replace(STORAGE, spare_bytes=-1), "`int` >= 0"),
        ("storages", replace(STORAGE, born=1 << 60), "`int` <="),
        ("storages", replace(STORAGE, died=-1), "`int` >= 0"),
        ("storages", replace(STORAGE, born=2, died=1), "dies before it is born"),
        ("storages", replace(STORAGE, role="toy"), "'toy'"),
        ("storages", replace(STORAGE, number=7), "not numbered in order"),
        ("refusals", replace(REFUSAL, site=1), "a site is referred to"),
        ("refusals", replace(REFUSAL, free_bytes=-1), "`int` >= 0"),
        ("step_ends", 1, "order"),
        ("waits", 1, "order"),
        ("waits", 1 << 60, "`int` <="),
        ("differentiated", 2, "order"),
        ("differentiated", -1, "`int` >= 0"),
    ],
)
def test_a_row_that_contradicts_the_others_is_refused(
    tmp_path: Path, table: str, row: object, why: str
) -> None:
    """The last row of a table is replaced; of those of ticks, (2,) becomes (2, row)."""
    ticks = dict.fromkeys(("step_ends", "waits", "differentiated"), (2,))
    trace = replace(small_trace(), refusals=(REFUSAL,), **ticks)
    rows = getattr(trace, table)
    kept = rows if table in ticks else rows[:-1]
    message = sealed_refusal(tmp_path, replace(trace, **{table: (*kept, row)}))
    assert why in message


def sealed_refusal(tmp_path: Path, trace: Trace) -> str:
    path = tmp_path / "bad"
    path.write_bytes(sealed(encode(pack(trace))))
    message = refusal(path)
    assert "corrupted" in message
    return message


def test_a_negative_count_is_refused(tmp_path: Path) -> None:
    assert "host_ops" in sealed_refusal(tmp_path, replace(small_trace(), host_ops=-1))


@pytest.mark.parametrize("numbers", [(0, 2), (-1,)])
def test_a_frame_that_does_not_exist_is_refused(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    packed = replace(pack(small_trace()), sites=(("", "", numbers),))
    path = tmp_path / "bad"
    path.write_bytes(sealed(encode(packed)))
    assert "corrupted" in refusal(path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    trace, *tables = msgspec.to_builtins(pack(small_trace()))
    path = tmp_path / "bad"
    path.write_bytes(sealed(msgspec.msgpack.encode([{**trace, "surprise": 1}, *tables])))
    assert "surprise" in refusal(path)


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(sealed(msgspec.msgpack.encode([*msgspec.to_builtins(pack(small_trace())), 1])))
    assert "corrupted" in refusal(path)


def test_a_small_file_cannot_ask_for_all_memory(tmp_path: Path) -> None:
    packed = zlib.compress(b"\0" * (1 << 24))
    header = trace_file._header(trace_file.FORMAT, len(packed), 1 << 38, trace_file._digest(packed))
    path = tmp_path / "bomb"
    path.write_bytes(header + packed)
    assert "claims to hold more" in refusal(path)
    header = trace_file._header(trace_file.FORMAT, len(packed), 100, trace_file._digest(packed))
    path.write_bytes(header + packed)
    assert "size is not the one it claims" in refusal(path)


def bomb(millions: int) -> bytes:
    """An array of so many empty arrays: each a byte in the body, and 64 in memory."""
    number = millions * 10**6
    return sealed(b"\xdd" + number.to_bytes(4, "big") + number * b"\x90")


@pytest.mark.parametrize("millions", [30, 100])
def test_a_small_file_cannot_ask_for_memory_by_its_rows(tmp_path: Path, millions: int) -> None:
    """30 million rows would be 2 GB, of 30 KB; 100 million are refused before unpacking."""
    path = tmp_path / "bomb"
    path.write_bytes(bomb(millions))
    assert path.stat().st_size < millions * 1100
    tracemalloc.start()
    try:
        assert "far more memory than those of a trace" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 70 << 20
    finally:
        tracemalloc.stop()


def test_the_bound_is_above_what_decoding_takes() -> None:
    body = encode(pack(model_trace()))
    tracemalloc.start()
    try:
        decoded = msgspec.msgpack.decode(body, type=Packed)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(decoded.trace.ops) == 5000
    assert taken_bytes < decoded_bytes_at_most(body) < 5 * taken_bytes


def model_trace() -> Trace:
    builder = TraceBuilder()
    a, b = builder.allocate(24), builder.allocate(48)
    for line in range(5000):
        builder.free(builder.run(mm_call(2, 3, 4), (a, b), site=site(frame(line=line % 7))))
    return builder.build()


def test_a_trace_that_packs_too_well_is_written_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is read, however alike its operators are."""
    path = tmp_path / "run.tally"
    model_trace().save(path)
    packed_bytes = path.stat().st_size
    monkeypatch.setattr(decoding, "ALLOWANCE_BYTES", 0)
    monkeypatch.setattr(decoding, "MOST_PER_PACKED_BYTE", 60)
    model_trace().save(path)
    assert path.stat().st_size > 2 * packed_bytes
    assert Trace.load(path) == model_trace()


def test_a_trace_larger_than_the_machine_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "machine_bytes", lambda: 1 << 10)
    assert "and this machine has 0 MiB" in refusal(file)


# Places ----------------------------------------------------------------------------------------


def test_nothing_but_the_file_is_left(file: Path) -> None:
    assert os.listdir(file.parent) == ["run.tally"]


def test_a_file_that_is_private_stays_private(file: Path) -> None:
    file.chmod(0o600)
    small_trace().save(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        small_trace().save(tmp_path / "run.tally")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.tally").stat().st_mode) == 0o640


def test_a_failed_write_keeps_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        small_trace().save(file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["run.tally"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "run.tally"
    link.symlink_to(victim)
    small_trace().save(link)
    assert victim.read_text() == "precious"
    assert not link.is_symlink()


def test_a_device_is_written_to_not_replaced() -> None:
    small_trace().save("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("place", ["", "missing/run.tally"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(OutputError, match="Choose another place with -o FILE"):
        small_trace().save(os.path.join(tmp_path, place))


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small_trace().save("run.tally")
    assert Trace.load("run.tally") == small_trace()
