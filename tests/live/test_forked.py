"""Functions in a forked child: what they return, why they fail, how they end."""

import os
import signal

import pytest

from torchtally.errors import TallyError, UsageError
from torchtally.live.forked import ForkedCall


def test_an_answer() -> None:
    here = os.getpid()
    parent, child = ForkedCall(lambda: (os.getppid(), os.getpid())).answer(60)
    assert parent == here != child


def test_until_then_there_is_none() -> None:
    reader, writer = os.pipe()
    call = ForkedCall(lambda: os.read(reader, 1))
    assert call.answer() is None
    os.write(writer, b"x")
    assert call.answer(60) == b"x"
    for file in (reader, writer):
        os.close(file)


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "text"), [(UsageError("not so"), "not so"), (ValueError("a\nb"), "ValueError: a b")]
)
def test_a_failure_is_raised_here(error: Exception, text: str) -> None:
    with pytest.raises(TallyError, match=f"^{text}$"):
        ForkedCall(lambda: fail(error)).answer(60)


def test_a_child_that_is_killed() -> None:
    call = ForkedCall(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(TallyError, match="ended with signal 9 and returned no result"):
        call.answer(60)


def test_a_child_that_is_not_waited_for() -> None:
    call = ForkedCall(signal.pause)
    child = call._pid
    call.cancel()
    call.cancel()
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_a_process_that_the_script_forks_does_not_end_it() -> None:
    """As at its exit, where functions registered by the parent are called, too."""
    reader, writer = os.pipe()
    call = ForkedCall(lambda: os.read(reader, 1))
    other = os.fork()
    if other == 0:
        call.cancel()
        os._exit(0)
    os.waitpid(other, 0)
    os.write(writer, b"x")
    assert call.answer(60) == b"x"
    for file in (reader, writer):
        os.close(file)


def test_a_script_that_waits_for_all_children_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = ForkedCall(lambda: 7)
    os.waitpid(call._pid, 0)
    assert call.answer(60) == 7
