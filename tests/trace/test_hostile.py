"""A trace whose tables agree but whose facts no run has: every command shows it or refuses it."""

import contextlib
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import torchtally
from tests.strategies import traces
from torchtally.cli import main
from torchtally.errors import TraceFileError
from torchtally.report.exports import export_names
from torchtally.report.formats import format_names
from torchtally.trace import Trace
from torchtally.trace.checks import InvalidTraceError
from torchtally.trace.trace import Packed, encode, pack, unpack
from torchtally.views import VIEWS

RELAXED = settings(
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
    deadline=None,
)
NUMBERS = st.sampled_from([0, 1, 2, 3, 511, 2**31, 2**53, 2**62, 2**64 - 1, -1])
TEXTS = st.sampled_from(
    ["", "cuda:0", "cuda:1", "cpu", "aten.mm", "aten.add_", "float32", "banana", "\x1b[31m",
     "steps", "exception", "torch.OutOfMemoryError: x", "parameter", "backward", "self",
     300 * "A"]
)  # fmt: skip


def like(value: Any) -> st.SearchStrategy[Any]:
    """Another fact of the same type."""
    match value:
        case bool():
            return st.booleans()
        case int() | None:
            return NUMBERS
        case str():
            return TEXTS
    return st.just(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all leaves."""
    if isinstance(value, dict):
        return [place for key, each in value.items() for place in places(each, (*path, key))]
    if isinstance(value, list):
        return [place for n, each in enumerate(value) for place in places(each, (*path, n))] or [
            path
        ]
    return [path]


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


@st.composite
def hostile_traces(draw: st.DrawFn) -> Trace:
    """A lawful trace with some facts replaced by others, as a file could have them."""
    document = msgspec.msgpack.decode(encode(pack(draw(traces()))))
    leaves = [place for place in places(document) if place]
    for place in draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=4)):
        at(document, place[:-1])[place[-1]] = draw(like(at(document, place)))
    try:
        return unpack(msgspec.convert(document, Packed))
    except (msgspec.ValidationError, InvalidTraceError):
        assume(False)
        raise


@given(trace=hostile_traces(), view=st.sampled_from([*VIEWS, None]))
@RELAXED
def test_every_command_shows_it_or_refuses_it(
    trace: Trace, view: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "run.tally"
    trace.save(file)
    try:
        assert Trace.load(file) == trace
    except TraceFileError:
        return
    by = [] if view is None else ["--by", view]
    with open(tmp_path / "out", "w") as out, contextlib.redirect_stdout(out):
        assert main(["show", str(file), *by]) in (0, 1, 2)
        assert main(["show", str(file), "--json"]) in (0, 1, 2)


# What a terminal would obey ----------------------------------------------------------------------

EVIL = "\x1b[31m\x1b]0;owned\x07\x9b1m\u202e\r|`<b>"


def train() -> None:
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.randn(1 << 17, 8, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        if loss > 0:
            optimizer.zero_grad()


def poisoned(document: Any, *, is_chip: bool) -> Trace:
    """With control characters in the chip's name, or in every other text that may have any."""
    for place in places(document):
        text = at(document, place) if place else None
        if isinstance(text, str) and (place[-1] == "chip") == is_chip:
            at(document, place[:-1])[place[-1]] = text + EVIL
            try:
                unpack(msgspec.convert(document, Packed))
            except (msgspec.ValidationError, InvalidTraceError):
                at(document, place[:-1])[place[-1]] = text
    return unpack(msgspec.convert(document, Packed))


@functools.cache
def packed_run() -> bytes:
    return encode(pack(torchtally.run(train, gpu="A100-SXM")))


def shown_in_every_way(file: str) -> Iterator[list[str]]:
    yield from (["show", file, "--by", view] for view in VIEWS)
    yield from (["show", file, "--format", form] for form in format_names())
    yield from (["show", file, "--by", "line", "--format", form] for form in format_names())
    yield from (["export", file, "--to", form, "-o", "-"] for form in export_names())
    yield ["show", file, "--gpu", "H100-SXM"]
    yield ["show", file, "--gpu", "H100-SXM", "--gpu", "L4"]
    yield ["diff", file, file]


class Utf8(io.StringIO):
    encoding = "utf-8"


@pytest.mark.parametrize("is_chip", [True, False])
def test_no_text_of_a_trace_is_printed_raw(is_chip: bool, tmp_path: Path) -> None:
    file = tmp_path / "run.tally"
    poisoned(msgspec.msgpack.decode(packed_run()), is_chip=is_chip).save(file)
    for words in shown_in_every_way(str(file)):
        out = Utf8()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main(words)
        raw = {char for char in out.getvalue() if not (char.isprintable() or char == "\n")}
        assert raw == set(), words
