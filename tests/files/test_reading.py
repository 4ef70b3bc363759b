"""Files that are not what a user thinks they are: a message, in bounded time and memory."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtally.chips import load_chips
from torchtally.errors import TallyError, UsageError
from torchtally.files import reading
from torchtally.files.reading import open_at_once, parse_toml, read_bytes
from torchtally.plan.architecture.config import read_config as read_huggingface
from torchtally.plan.architecture.lookup import model
from torchtally.timing.calibration.file import read as read_calibration
from torchtally.trace import Trace
from torchtally.units import (
    parse_bytes,
    parse_count,
    parse_flop_per_s,
    parse_fraction,
    parse_seconds,
    parse_usd,
)

RELAXED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


def read_training(path: Path) -> Any:
    from torchtally.train.config import read_config

    return read_config(path)


READERS: dict[str, Callable[[Path], Any]] = {
    "chips": load_chips,
    "trace": Trace.load,
    "calibration": read_calibration,
    "config.json": read_huggingface,
    "model": lambda path: model(str(path)),
    "training": read_training,
}
EACH = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@EACH
@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "/", "/proc/self/mem", "a\0b"])
def test_a_path_to_something_else_is_refused(read: Callable[[Path], Any], place: str) -> None:
    with pytest.raises(TallyError):
        read(Path(place))


@EACH
def test_a_pipe_without_a_writer_is_not_waited_for(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            read(pipe)
        except TallyError as error:
            failures.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert len(failures) == 1


def test_a_pipe_with_a_writer_is_read_to_its_end() -> None:
    """As in `TALLY_CHIPS=<(make_chips) tally gpus`."""
    out, into = os.pipe()
    with os.fdopen(into, "wb") as writer:
        writer.write(b"x = 1")
    assert read_bytes(f"/dev/fd/{out}") == b"x = 1"
    os.close(out)


def test_a_file_may_have_as_many_bytes_as_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bytes(file, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_bytes(file, 4)
    with open(file, "rb", opener=open_at_once) as stream:
        assert os.get_blocking(stream.fileno())


# TOML ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = " + 100_000 * "[", "nested too deeply"),
        ("x = " + 60 * "[" + 60 * "]", "nested more than 50 levels deep"),
        (100 * "a." + "a = 1", "nested more than 50 levels deep"),
        ("x = " + 5000 * "1", "integer string conversion"),
        (f"x = {10**400}", "an integer of more than 40 digits"),
        ("x = 0x" + 5000 * "f", "an integer of more than 40 digits"),
        ("x = [[-1" + 50 * "0" + "]]", "an integer of more than 40 digits"),
        ("x", "Expected"),
    ],
    ids=range(8),
)
def test_toml_that_no_person_writes_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"my\.toml: cannot be read as a table: .*" + why):
        parse_toml(text, "my.toml", "a table")


def test_toml_that_a_person_writes_is_read() -> None:
    text = "x = 1_000_000_000_000\n[a.b]\nc = [[1, 2], [3]]\nd = 1e300"
    values = {"x": 10**12, "a": {"b": {"c": [[1, 2], [3]], "d": 1e300}}}
    assert parse_toml(text, "my.toml", "a table") == values


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("key", ["memory_bytes", "multiprocessors", "tdp_watts"])
def test_a_chip_with_a_huge_number_is_refused(tmp_path: Path, key: str, digits: int) -> None:
    file = tmp_path / "chips.toml"
    file.write_text(f'[[chip]]\nname = "x"\n{key} = {digits * "9"}\n')
    with pytest.raises(UsageError, match="cannot be read as a table of chips"):
        load_chips(file)


# Numbers of the command line ----------------------------------------------------------------------

PARSERS = (parse_bytes, parse_count, parse_fraction, parse_flop_per_s, parse_seconds, parse_usd)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", [5000 * "1", "1" + 400 * "0", "1e400", "1e99999999", 9999 * "."])
def test_a_number_of_a_thousand_digits_is_refused(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("parse", PARSERS)
@given(
    text=st.text(max_size=40) | st.from_regex(r"[0-9.eE+-]{1,30}[A-Za-z/%]{0,8}", fullmatch=True)
)
@RELAXED
def test_any_text_is_a_number_or_refused(parse: Callable[[str], Any], text: str) -> None:
    try:
        assert parse(text) >= 0
    except UsageError:
        return


# Anything -----------------------------------------------------------------------------------------

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**400, -(10**30), 2**63, 1e308])
)  # fmt: skip
KEYS = st.sampled_from(
    ["chip", "name", "peaks", "model_type", "hidden_size", "format", "device", "samples", "model",
     "batch", "optimizer", "memory_bytes", "weight_map", "num_hidden_layers", "steps", "data"]
) | st.text(max_size=5)  # fmt: skip
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


def toml_of(value: Any) -> str:
    """A document with this value in it, in TOML's inline notation."""
    match value:
        case bool() | None:
            return str(bool(value)).lower()
        case int() | float():
            return str(value) if abs(value) < 10**4000 else "0"
        case str():
            return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
        case list():
            return f"[{', '.join(map(toml_of, value))}]"
    return f"{{{', '.join(f'{toml_of(key)} = {toml_of(each)}' for key, each in value.items())}}}"


def check_read_or_refused(read: Callable[[Path], Any], file: Path) -> None:
    """Any other error is one of ours."""
    try:
        result = read(file)
    except TallyError:
        return
    assert result is not None


@EACH
@given(
    value=st.dictionaries(KEYS, STRUCTURES, max_size=5), notation=st.sampled_from(["json", "toml"])
)
@RELAXED
def test_any_structure_is_read_or_refused(
    read: Callable[[Path], Any], value: Any, notation: str, tmp_path: Path
) -> None:
    import json

    file = tmp_path / "config.json"
    if notation == "json":
        text = json.dumps(value)
    else:
        text = "\n".join(f"{toml_of(key)} = {toml_of(each)}" for key, each in value.items())
    file.write_text(text, encoding="utf-8", errors="replace")
    check_read_or_refused(read, file)


@EACH
@given(content=st.binary(max_size=200))
@RELAXED
def test_any_bytes_are_read_or_refused(
    read: Callable[[Path], Any], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    check_read_or_refused(read, file)


def test_the_bounds_leave_room_for_what_people_write() -> None:
    from torchtally.chips import TABLE

    assert TABLE.stat().st_size * 20 < reading.MOST_BYTES
