"""Run a user's script as Python itself would, and know how it ended.

The script is `__main__` with its own argv and path, may spawn and pickle, and meets its own
exceptions, exits and signals. Tracing executes the script: the virtual GPU is no sandbox.
"""

import atexit
import builtins
import importlib.util
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import FrameType, ModuleType, TracebackType
from typing import Any

from torchtally.errors import ScriptError
from torchtally.record import Ending
from torchtally.tracer.source import Code, classify_path
from torchtally.tracer.steps import StepsDone

INTERRUPTED_EXIT = 128 + signal.SIGINT
TERMINATED_EXIT = 128 + signal.SIGTERM
OUT_OF_TIME_EXIT = 124
"""As coreutils' `timeout` exits."""


@dataclass(frozen=True, slots=True)
class Script:
    """What to run: a file, or with `is_module` a module's dotted name; and its own arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def __str__(self) -> str:
        return " ".join(("-m " if self.is_module else "") + part if not at else part
                        for at, part in enumerate((self.target, *self.arguments)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended, and the exit code it would have had."""

    ending: Ending
    exit_code: int


class Terminated(BaseException):
    """SIGTERM arrived."""


class OutOfTime(BaseException):
    """The run took longer than it was given."""


def check(script: Script) -> None:
    """Raise ScriptError when there is nothing to run, before anything else is done."""
    if script.is_module:
        try:
            found = importlib.util.find_spec(script.target)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ScriptError(f"no module named {script.target!r} on the path.\n"
                              "Give -m a dotted name that `python -m` would take.")  # fmt: skip
        return
    if os.path.isdir(script.target):
        if not os.path.isfile(os.path.join(script.target, "__main__.py")):
            raise ScriptError(f"{script.target} is a directory without a __main__.py.")
    elif not os.path.isfile(script.target):
        raise ScriptError(
            f"{script.target}: no such file.\nGive the path of the training script: "
            "`tally run path/to/train.py --gpu NAME`."
        )


def run(script: Script, *, max_seconds: float | None = None) -> Outcome:
    """Run to the end, whichever way it comes; the user's traceback goes to stderr."""
    try:
        with as_main(script), stopping(max_seconds):
            execute(script)
            run_exit_handlers()
    except StepsDone:
        return Outcome(Ending("steps"), 0)
    except SystemExit as exit_:
        return Outcome(Ending("exit", exit_message(exit_)), exit_code(exit_))
    except KeyboardInterrupt:
        return Outcome(Ending("interrupted", "SIGINT"), INTERRUPTED_EXIT)
    except Terminated:
        return Outcome(Ending("interrupted", "SIGTERM"), TERMINATED_EXIT)
    except OutOfTime:
        message = f"stopped after {max_seconds:g} s (--max-seconds)"
        return Outcome(Ending("time", message), OUT_OF_TIME_EXIT)
    except BaseException as error:
        print_traceback(error)
        summary = traceback.format_exception_only(error)[-1].strip()
        return Outcome(Ending("exception", summary), 1)
    return Outcome(Ending("exit"), 0)


def execute(script: Script) -> None:
    """The script's code, in `__main__`."""
    if script.is_module:
        runpy.run_module(script.target, run_name="__main__", alter_sys=True)
    elif os.path.isdir(script.target):
        runpy.run_path(script.target, run_name="__main__")
    else:
        with open(script.target, "rb") as file:
            source = file.read()
        main = sys.modules["__main__"]
        exec(compile(source, script.target, "exec"), vars(main))


def run_exit_handlers() -> None:
    """What the script registered with atexit runs while its GPU still exists."""
    atexit._run_exitfuncs()


@contextmanager
def as_main(script: Script) -> Iterator[None]:
    """argv, path and `__main__` as the script would find them under `python`."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = [script.target, *script.arguments]
    if not sys.flags.safe_path:
        here = os.getcwd() if script.is_module else os.path.dirname(os.path.abspath(script.target))
        sys.path.insert(0, here)
    if not script.is_module and os.path.isfile(script.target):
        sys.modules["__main__"] = main_module(script.target)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


def main_module(path: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__spec__ = None
    module.__dict__["__cached__"] = None
    return module


@contextmanager
def stopping(max_seconds: float | None) -> Iterator[None]:
    """SIGTERM and the time limit end the script by an exception, so that a report is written."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    def time_out(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before: list[tuple[int, Any]] = [(signal.SIGTERM, signal.signal(signal.SIGTERM, terminate))]
    if max_seconds is not None:
        before.append((signal.SIGALRM, signal.signal(signal.SIGALRM, time_out)))
        signal.setitimer(signal.ITIMER_REAL, max_seconds)
    try:
        yield
    finally:
        if max_seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)


def exit_code(exit_: SystemExit) -> int:
    """As Python maps it: None is 0, an int is itself, anything else is printed and is 1."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return 1


def exit_message(exit_: SystemExit) -> str:
    return "" if exit_.code in (None, 0) else f"sys.exit({exit_.code!r})"


def print_traceback(error: BaseException) -> None:
    """The user's traceback: ours, above the first line of the script, is left out."""
    visible = script_part(error.__traceback__)
    traceback.print_exception(type(error), error, visible, file=sys.stderr)


def script_part(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not ours or Python's machinery."""
    start = tb
    while start is not None and classify_path(start.tb_frame.f_code.co_filename) is Code.INTERNAL:
        start = start.tb_next
    return start  # None for a syntax error: the message names file and line itself


@contextmanager
def reporting_hard_exit(report: Callable[[int], None]) -> Iterator[None]:
    """`os._exit` skips everything; here it writes the report first, in this process only."""
    native, process = os._exit, os.getpid()

    def hard_exit(code: int) -> None:
        if os.getpid() == process:
            report(code)
        native(code)

    os._exit = hard_exit  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = native
