"""A trace file comes back as it was written, or is refused with a message; nothing in between."""

import os
import stat
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder, copy_in_call, frame, mm_call, site
from tests.strategies import traces
from torchtally.errors import TraceFileError
from torchtally.trace import Call, Trace
from torchtally.trace import file as trace_file
from torchtally.trace.file import read_trace, write_trace

RELAXED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)


def small_trace() -> Trace:
    made = TraceBuilder()
    a, b = made.allocate(24), made.allocate(48)
    here = site(frame(line=3), frame(line=9), module="net.0", module_class="Linear")
    product = made.run(mm_call(2, 3, 4), (a, b), site=here)
    made.free(product)
    made.wait()
    made.run(mm_call(2, 3, 4), (a, b), site=here)
    made.end_step()
    return made.build()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.tally"
    write_trace(small_trace(), path)
    return path


@given(trace=traces())
@RELAXED
def test_what_is_written_is_read(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.tally"
    write_trace(trace, path)
    again = read_trace(path)
    assert again.ops == trace.ops
    assert again.storages == trace.storages
    assert again.step_ends == trace.step_ends
    assert again.facts == trace.facts
    assert again.waits == trace.waits


def test_calls_and_sites_are_shared_after_reading(file: Path) -> None:
    first, second = read_trace(file).ops
    assert first.call is second.call
    assert first.site is second.site


def test_literals_come_back_as_tuples(tmp_path: Path) -> None:
    call = Call("aten.x", "", (), (), (("dim", (0, 1)), ("keepdim", True), ("eps", None)))
    made = TraceBuilder()
    made.run(call)
    write_trace(made.build(), tmp_path / "run.tally")
    assert read_trace(tmp_path / "run.tally").ops[0].call.literals == call.literals


def test_pinned_and_pageable_sources_stay_apart(tmp_path: Path) -> None:
    made = TraceBuilder()
    calls = [copy_in_call(8), copy_in_call(8, is_pinned=True), copy_in_call(8)]
    for call in calls:
        made.run(call, (-1,))
    write_trace(made.build(), tmp_path / "run.tally")
    assert [op.call for op in read_trace(tmp_path / "run.tally").ops] == calls
    assert calls[0] != calls[1]


def test_a_file_name_that_is_not_utf8_is_spelled_out(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.run(mm_call(1, 1, 1), (0, 0), site=site(frame("caf\udce9.py")))
    write_trace(made.build(script="caf\udce9.py"), tmp_path / "run.tally")
    assert read_trace(tmp_path / "run.tally").script == r"caf\udce9.py"


def test_the_first_line_is_readable(file: Path) -> None:
    line = file.read_bytes().split(b"\n")[0].decode("ascii")
    assert line.startswith("torchtally trace format=3 packed=")
    assert len(line) < 120


# Refusals --------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
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
    file.write_bytes(file.read_bytes().replace(b"format=3 ", b"format=4 ", 1))
    message = refusal(file)
    assert "made by a newer torchtally (format 4, this one reads 3)" in message
    assert "Upgrade" in message


@pytest.mark.parametrize("older", [0, 1, 2])
def test_an_older_format_is_refused(file: Path, older: int) -> None:
    file.write_bytes(file.read_bytes().replace(b"format=3 ", b"format=%d " % older, 1))
    message = refusal(file)
    assert f"its format {older} is not one this torchtally reads (format 3)" in message
    assert "Make the trace again" in message


def test_bytes_after_the_end_are_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")
    assert "more in it" in refusal(file)


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
    body = bytearray(msgspec.msgpack.encode(trace_file._pack(small_trace())))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed"
    path.write_bytes(sealed(bytes(body)))
    try:
        trace = read_trace(path)
    except TraceFileError:
        return
    assert isinstance(trace, Trace)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        (("ops", "call"), [0, 7], "call"),
        (("ops", "site"), [0, -1], "site"),
        (("ops", "phase"), [0, 4], "phase"),
        (("ops", "inputs"), [(0, 9), (0, 1)], "storage"),
        (("ops", "inputs"), [(0,), (0, 1)], "do not match"),
        (("ops", "clock_steps"), [0, 0], "backwards"),
        (("ops", "clock_steps"), [0], "length"),
        (("storages", "requested_bytes"), [1, 1, 1, -1], "bytes"),
        (("storages", "born"), [0, 0, 0, 1 << 60], "tick"),
        (("storages", "role"), [0, 0, 0, 6], "role"),
        (("storages", "name"), [0, 0, 0, 9], "text"),
        (("step_ends",), [2, 1], "order"),
        (("waits",), [2, 1], "order"),
        (("waits",), [1, 1], "order"),
        (("waits",), [-1], "tick"),
        (("waits",), [1 << 60], "tick"),
        (("host_ops",), -1, "host"),
    ],
)
def test_a_number_that_points_nowhere_is_refused(
    tmp_path: Path, column: tuple[str, ...], value: object, why: str
) -> None:
    body = trace_file._pack(small_trace())
    owner = body
    for name in column[:-1]:
        owner = getattr(owner, name)
    setattr(owner, column[-1], value)
    path = tmp_path / "bad"
    path.write_bytes(sealed(msgspec.msgpack.encode(body)))
    message = refusal(path)
    assert "corrupted" in message
    assert why in message


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    body = msgspec.to_builtins(trace_file._pack(small_trace()))
    body["surprise"] = 1
    path = tmp_path / "bad"
    path.write_bytes(sealed(msgspec.msgpack.encode(body)))
    assert "surprise" in refusal(path)


def test_a_small_file_cannot_ask_for_all_memory(tmp_path: Path) -> None:
    packed = zlib.compress(b"\0" * (1 << 24))
    header = trace_file._header(trace_file.FORMAT, len(packed), 1 << 38, trace_file._digest(packed))
    path = tmp_path / "bomb"
    path.write_bytes(header + packed)
    assert "claims to hold more" in refusal(path)
    header = trace_file._header(trace_file.FORMAT, len(packed), 100, trace_file._digest(packed))
    path.write_bytes(header + packed)
    assert "size is not the one it claims" in refusal(path)


# Places ----------------------------------------------------------------------------------------


def test_nothing_but_the_file_is_left(file: Path) -> None:
    assert os.listdir(file.parent) == ["run.tally"]


def test_a_file_that_is_private_stays_private(file: Path) -> None:
    file.chmod(0o600)
    write_trace(small_trace(), file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_trace(small_trace(), tmp_path / "run.tally")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.tally").stat().st_mode) == 0o640


def test_a_failed_write_keeps_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TraceFileError, match="No space left on device"):
        write_trace(small_trace(), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["run.tally"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "run.tally"
    link.symlink_to(victim)
    write_trace(small_trace(), link)
    assert victim.read_text() == "precious"
    assert not link.is_symlink()


def test_a_device_is_written_to_not_replaced() -> None:
    write_trace(small_trace(), "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("place", ["", "missing/run.tally"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(TraceFileError, match="Choose another place with -o FILE"):
        write_trace(small_trace(), os.path.join(tmp_path, place))


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(small_trace(), "run.tally")
    assert read_trace("run.tally") == small_trace()
