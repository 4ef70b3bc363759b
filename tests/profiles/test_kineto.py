"""torch.profiler's files: what lies in what, which operator launched which kernel."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.kineto_files import TraceMaker, linear_step
from torchtally.errors import TraceFileError
from torchtally.profiles import Profile, read_kineto
from torchtally.profiles import stream as streams


def profile(tmp_path: Path, content: TraceMaker, **more: Any) -> Profile:
    return read_kineto(str(content.write(tmp_path / "trace.json", **more)))


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch(tmp_path: Path) -> None:
    read_profile = profile(tmp_path, linear_step())
    names = [read_profile.operators[each.operator].name for each in read_profile.activities]
    assert names == ["aten::mm", "aten::mm", "aten::mm", "aten::mul_"]
    forward = read_profile.operators[read_profile.activities[0].operator]
    assert read_profile.operators[forward.parent].name == "aten::linear"
    assert [each.launched_us for each in read_profile.activities] == [20, 120, 150, 320]
    assert sum(each.duration_us for each in read_profile.activities) == 610


def test_stacks_and_annotations_are_those_open_at_the_moment(tmp_path: Path) -> None:
    read_profile = profile(tmp_path, linear_step())
    forward = next(each for each in read_profile.operators if each.name == "aten::mm")
    names = []
    place = forward.stack
    while place >= 0:
        names.append(read_profile.stacks[place].name)
        place = read_profile.stacks[place].parent
    assert names == ["model.py(40): forward", "nn.Module: Linear_0", "train.py(3): main"]
    update = next(each for each in read_profile.operators if each.name == "aten::mul_")
    assert read_profile.annotations[update.annotation].name == "Optimizer.step#SGD.step"
    assert read_profile.stacks[update.stack].name == "train.py(3): main"


def test_the_same_arguments_are_one_row(tmp_path: Path) -> None:
    read_profile = profile(tmp_path, linear_step())
    products = {each.arguments for each in read_profile.operators if each.name == "aten::mm"}
    assert len(products) == 1
    assert read_profile.arguments[products.pop()].shapes == ((4096, 4096), (4096, 4096))


def test_any_chunk_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are cut apart at any place, nested objects and braces in names included."""
    maker = linear_step()
    maker.operator('odd },{ "name" \\" }, {', 500, 1, [[2], [3]], ["float", "float"], ["}, {", "x"])
    maker.events[-1]["args"]["nested"] = [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}]
    path = maker.write(tmp_path / "trace.json")
    whole = read_kineto(str(path))
    for size in (1, 7, 100, 1000, 5000):
        monkeypatch.setattr(streams, "CHUNK_BYTES", size)
        part = read_kineto(str(path))
        assert part.operators == whole.operators
        assert part.activities == whole.activities


def test_plain_gzipped_indented_and_bare_lists_are_read_alike(tmp_path: Path) -> None:
    maker = linear_step()
    whole = profile(tmp_path, maker)
    packed = maker.write(tmp_path / "trace.json.gz")
    indented, bare, unclosed = (tmp_path / name for name in ("i.json", "b.json", "u.json"))
    indented.write_text(json.dumps(maker.document(), indent=2))
    bare.write_text(json.dumps(maker.events))
    unclosed.write_text(json.dumps(maker.events)[:-1] + ",\n")  # as Chrome's format allows
    for path in (packed, indented, bare, unclosed):
        assert read_kineto(str(path)).activities == whole.activities, path


def test_metadata_and_environment_are_not_kept(tmp_path: Path) -> None:
    secret = "hf_" + "s3cret" * 4
    read_profile = profile(
        tmp_path, linear_step(), metadata={"env": {"TOKEN": secret}}, username=secret
    )
    assert secret not in repr(read_profile)


def test_ranks_and_groups_are_those_of_the_file(tmp_path: Path) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    told = {"rank": 1, "world_size": 2, "pg_config": [group]}
    read_profile = profile(tmp_path, linear_step(), distributedInfo=told)
    assert (read_profile.rank, read_profile.world_size) == (1, 2)
    assert read_profile.groups[0].ranks == (0, 1)


def test_an_event_of_another_form_is_counted_and_left_out(tmp_path: Path) -> None:
    maker = linear_step()
    maker.events.append({"ph": "X", "cat": "cpu_op", "name": ["not", "text"], "ts": "late"})
    read_profile = profile(tmp_path, maker)
    assert read_profile.unreadable == 1
    assert len(read_profile.activities) == 4


def test_without_a_launch_the_external_id_links(tmp_path: Path) -> None:
    maker = linear_step()
    maker.operator("aten::relu", 500, 10, [[4]], ["float"], **{"External id": 77})
    maker.events.append(
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 600, "dur": 2,
         "args": {"External id": 77, "device": 0, "stream": 7}}
    )  # fmt: skip
    read_profile = profile(tmp_path, maker)
    alone = next(each for each in read_profile.activities if each.name == "k")
    assert read_profile.operators[alone.operator].name == "aten::relu"
    assert math.isnan(alone.launched_us)


TEXT = json.dumps(linear_step().document())
BROKEN: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t ",
    "no JSON": b"hello",
    "XML": b"<trace/>",
    "a number": b"42",
    "a text": b'"traceEvents"',
    "no events": b'{"schemaVersion": 1}',
    "events of another type": b'{"traceEvents": 5}',
    "an object of events": b'{"traceEvents": {"a": 1}}',
    "nothing in it": b'{"traceEvents": []}',
    "an empty list": b"[]",
    "cut in the head": TEXT[:30].encode(),
    "cut after the bracket": TEXT[: TEXT.index("[{") + 1].encode(),
    "cut in the first event": TEXT[: TEXT.index("[{") + 40].encode(),
    "cut in the middle": TEXT[: len(TEXT) // 2].encode(),
    "cut before the end": TEXT[:-2].encode(),
    "one byte short": TEXT[:-1].encode(),
    "two documents": (TEXT + TEXT).encode(),
    "text behind it": (TEXT + "x").encode(),
    "a missing comma": TEXT.replace("}, {", "} {", 1).encode(),
    "a bare word": TEXT.replace('"X"', "X", 1).encode(),
    "single quotes": TEXT.replace('"', "'").encode(),
    "not UTF-8": TEXT.encode("utf-16"),
    "a zero byte": TEXT.replace("aten", "a\0ten", 1).encode(),
    "bad escapes": TEXT.replace("aten", "\\uZZZZ", 1).encode(),
    "deep nesting": b'{"traceEvents": ' + b"[" * 100_000,
    "deep nesting in the head": b'{"x": ' + b"[" * 100_000 + b', "traceEvents": []}',
    "gzip, cut short": gzip.compress(TEXT.encode())[:-20],
    "gzip, damaged": gzip.compress(TEXT.encode())[:60] + b"\0" * 40,
    "gzip of nothing": gzip.compress(b""),
    "a zip file": b"PK\x03\x04" + b"\0" * 60,
    "only other events": b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_gives_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(TraceFileError) as caught:
        read_kineto(str(path))
    message = str(caught.value)
    assert str(path) in message
    assert len(message.splitlines()) <= 2
    assert len(message) < 500


def test_missing_files_and_folders_are_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="no such file"):
        read_kineto(str(tmp_path / "none.json"))
    with pytest.raises(TraceFileError, match="a folder"):
        read_kineto(str(tmp_path))


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("value", [1e308, -1e308, 1e17])
def test_a_time_that_no_profiler_writes_is_left_out(tmp_path: Path, key: str, value: float) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2.0, "dur": 5.0,
              "args": {"stream": 7, "correlation": 1, "device": 0}}  # fmt: skip
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}
    events = [kernel, {**kernel, key: value}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    read_profile = read_kineto(str(path))
    assert [each.name for each in read_profile.activities] == ["gemm"]
