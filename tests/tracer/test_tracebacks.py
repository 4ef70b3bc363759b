"""Tracebacks of the user's: our frames are out, in every error of a chain; our mistakes stay."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm import TALLY, warm
from torchtally.tracer import tracebacks


def ours(source: str) -> Callable[..., None]:
    """A function `f` as if it stood in a file of ours; it may call `g`."""
    space: dict[str, Callable[..., None]] = {}
    exec(compile(source, os.path.join(tracebacks.OURS, "none.py"), "exec"), space)
    return space["f"]


def caught(function: Callable[[], object]) -> BaseException:
    with pytest.raises((Exception, ExceptionGroup)) as info:
        function()
    return info.value


def functions(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


fail = ours("def f():\n    raise RuntimeError('a device is missing')")
call = ours("def f(g):\n    g()")
slip = ours("def f():\n    assert False")


def user() -> None:
    fail()


@pytest.mark.parametrize(("error", "message"), [
    (ValueError("no loss\nat all"), "ValueError: no loss\nat all"),
    (SyntaxError("never closed", ("train.py", 1, 5, "x = (", 1, 6)), "SyntaxError: never closed"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
])  # fmt: skip
def test_a_report_says_the_error_and_not_its_notes(error: BaseException, message: str):
    error.add_note("in epoch 3\nof 10")
    assert tracebacks.message_of(error) == message
    assert error.__notes__ == ["in epoch 3\nof 10"]


def test_frames_of_ours_are_left_out_at_the_end_and_in_between() -> None:
    error = caught(lambda: call(user))
    assert functions(error)[-3:] == ["f", "user", "f"]
    tracebacks.strip(error)
    assert functions(error) == ["caught", "<lambda>", "user"]
    assert str(error) == "a device is missing"


def test_lines_stay_what_they_are() -> None:
    error = caught(user)
    before = error.__traceback__
    assert before is not None
    assert before.tb_next is not None
    tracebacks.strip(error)
    after = error.__traceback__
    assert after is not None
    assert after.tb_next is not None
    assert (after.tb_next.tb_lineno, after.tb_next.tb_lasti) == (
        before.tb_next.tb_lineno,
        before.tb_next.tb_lasti,
    )


def test_causes_contexts_and_groups_are_stripped_too() -> None:
    def chain() -> None:
        try:
            user()
        except RuntimeError as error:
            raise ExceptionGroup("two", [error, caught(user)]) from error  # type: ignore[list-item]

    error = caught(chain)
    tracebacks.strip(error)
    errors = tracebacks.error_chain(error)
    assert len(errors) == 3
    assert all("f" not in functions(each) for each in errors)


def test_a_chain_may_be_a_circle() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__context__, second.__context__ = second, first
    assert tracebacks.error_chain(first) == [first, second]


def test_our_own_mistakes_are_not_hidden() -> None:
    error = caught(slip)
    tracebacks.strip(error)
    assert functions(error)[-1] == "f"


def test_the_scripts_own_excepthook_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda kind, value, tb: print("hook", value))
    tracebacks.show(caught(user))
    assert capsys.readouterr().out == "hook a device is missing\n"


def test_an_excepthook_that_fails_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda kind, value, tb: 1 / 0)
    tracebacks.show(caught(user))
    err = capsys.readouterr().err
    assert "Error in sys.excepthook:" in err
    assert "ZeroDivisionError" in err
    assert err.endswith("RuntimeError: a device is missing\n")


def test_the_stack_of_a_script_begins_with_the_script(tmp_path: Path) -> None:
    """What a script reads of its own stack is what `python script.py` would give it."""
    script = tmp_path / "stack.py"
    script.write_text(
        "import traceback\n"
        "def names():\n    return [frame.name for frame in traceback.extract_stack()]\n"
        "print(names())\n"
    )
    expected = subprocess.run([sys.executable, script], capture_output=True, text=True).stdout
    assert expected.startswith("['<module>', 'names']")
    command = warm(TALLY, "run", str(script), "--gpu", "H100-SXM", "--quiet")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == expected, done.stderr
