"""A trace whose tables agree but whose facts no run has: every command shows it or refuses it."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.strategies import traces
from torchtally.cli import main
from torchtally.errors import TraceFileError
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
