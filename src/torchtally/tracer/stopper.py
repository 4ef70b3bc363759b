"""Ending a script that would not end by itself, and still having its report.

A script is told to stop by an exception that it normally lets pass: `StepsDone` from the optimizer
that took the last step asked for, `Stopped` from SIGTERM (so an outer `timeout` works) or when its
time is up. One that swallows it, or hangs, has GRACE_S: then the report is written without it.
"""

import _thread
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from torchtally.trace import Ending
from torchtally.tracer import tracebacks
from torchtally.tracer.handlers import guarding_handlers, is_in_finalizer
from torchtally.tracer.steps import StepsDone

GRACE_S = 10.0
"""What a script has for its own `except` and `finally` once it was told to stop."""
AGAIN_S = 0.01
"""Until a stop is tried again that went astray in a finalizer."""
PATIENCE_STEPS = 3
"""Optimizer steps that a script may take after it was told to stop."""


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """How a script ended, and the exit code it would have had."""

    ending: Ending
    exit_code: int


DONE = ScriptOutcome(Ending("steps"), 0)
INTERRUPTED = ScriptOutcome(Ending("interrupted", "SIGINT"), 128 + signal.SIGINT)
TERMINATED = ScriptOutcome(Ending("interrupted", "SIGTERM"), 128 + signal.SIGTERM)
OUT_OF_TIME_EXIT = 124
"""As coreutils' `timeout` exits."""


class Stopped(BaseException):
    """Raised in the script when SIGTERM arrived or its time is up."""


class Stopper:
    """Watches one run of a script in this process. `leaving` writes the report, here or at the end.

    Known limitation: SIGTERM is handled when the main thread next runs Python code.
    """

    def __init__(
        self, leaving: Callable[[ScriptOutcome], int], *, max_seconds: float | None = None
    ) -> None:
        self.outcome: ScriptOutcome | None = None
        """How the run ends, once it was decided from outside the script."""
        self._leaving = leaving
        """Reports, and returns the exit code."""
        self._max_seconds = max_seconds
        self._process = os.getpid()
        self._native_exit = os._exit
        self._is_told = False
        self._late_steps = 0
        self._is_over = False
        """What SIGTERM asks for has happened; other than the event, safe to read in its handler."""
        self._over = threading.Event()
        self._sending = threading.Lock()
        """Held while a signal is sent, so that none arrives after its handler is gone."""
        self._last_word = threading.Lock()
        """Held by whoever reports; never given back."""

    @property
    def is_in_child(self) -> bool:
        """A forked process runs the same code and has no report to write."""
        return os.getpid() != self._process

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which nothing but SIGKILL ends the process without a report."""
        handler = signal.signal(signal.SIGTERM, self._terminate)
        before = os._exit, threading.excepthook, sys.unraisablehook
        os._exit = self._hard_exit
        threading.excepthook, sys.unraisablehook = self._thread_failed, self._error_lost
        _watching.append(self)
        if self._max_seconds is not None:
            self._later(self._max_seconds, self._run_out_of_time)
        try:
            with guarding_handlers(lambda number: self._send_later(signal.Signals(number))):
                yield
        finally:
            self._is_over = True
            with self._sending:
                self._over.set()
            if not self.is_in_child:
                self._last_word.acquire()
            os._exit, hook, sys.unraisablehook = before
            if threading.active_count() == 1:  # else one of them may still be ending by a stop
                threading.excepthook = hook
            signal.signal(signal.SIGTERM, handler)
            _watching.remove(self)

    def stop(self, outcome: ScriptOutcome) -> None:
        """Have the script end, from any thread; the first to say so says how."""
        self._decide(outcome)
        if callable(signal.getsignal(signal.SIGTERM)):
            self._send(signal.SIGTERM)
        else:  # the script's own doing: the signal would end us, or nothing
            self._leave(outcome)

    def steps_are_done(self) -> None:
        """The optimizer is about to raise StepsDone, in whatever thread."""
        if self.is_in_child:
            return
        if self.outcome is None:
            self._decide(DONE)
            if threading.current_thread() is not threading.main_thread():
                self.stop(DONE)
            return
        self._late_steps += 1
        if self._late_steps > PATIENCE_STEPS:
            flush_outputs()
            self._leave(self.outcome)

    def leave_in_child(self) -> None:
        """A forked process meets SIGTERM and `os._exit` as it would without us."""
        os._exit = self._native_exit
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def exit_child(self, code: int) -> NoReturn:
        """End a forked process that has come to the end of the script."""
        flush_outputs()
        self._native_exit(code)

    def _decide(self, outcome: ScriptOutcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._later(GRACE_S, lambda: self._leave(outcome))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        """Act unless the script has ended by then."""

        def wait() -> None:
            if not self._over.wait(seconds):
                action()

        # Not a threading.Thread: the script's `threading.enumerate()` is its own.
        _thread.start_new_thread(wait, ())

    def _send(self, number: signal.Signals) -> None:
        """Sends to the main thread: interrupts what it waits for, which a signal to the process
        might not.
        """
        with self._sending:
            if not self._is_over:
                signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _send_later(self, number: signal.Signals) -> None:
        """Once more, after the finalizer in which it arrived."""
        self._later(AGAIN_S, lambda: self._send(number))

    def _run_out_of_time(self) -> None:
        message = f"stopped after {self._max_seconds:g} s (--max-seconds)"
        self.stop(ScriptOutcome(Ending("time", message), OUT_OF_TIME_EXIT))

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM; the second one ends the process at once."""
        if self._is_told:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if self._is_over:
            return
        self._is_told = True
        self._decide(TERMINATED)
        raise Stopped

    def _hard_exit(self, status: int) -> NoReturn:
        """`os._exit` as the script calls it: skips everything, but not the report."""
        if not self.is_in_child:
            self._leave(ScriptOutcome(Ending("exit", f"os._exit({status})"), status))
        self._native_exit(status)

    def _leave(self, outcome: ScriptOutcome) -> None:
        """Report and end the process, without a word to the script."""
        if not self._last_word.acquire(blocking=False):
            self._last_word.acquire()  # another thread is reporting and then ends the process
        code = outcome.exit_code
        try:
            code = self._leaving(outcome)
        finally:
            self._native_exit(code)

    def _thread_failed(self, args: Any) -> None:
        if not isinstance(args.exc_value, (StepsDone, Stopped)):
            tracebacks.show_in_thread(args)

    def _error_lost(self, args: Any) -> None:
        """An error in a finalizer. A stop must not end there; and storages have many finalizers."""
        error = args.exc_value
        if isinstance(error, Stopped):
            self._is_told = False
            self._send_later(signal.SIGTERM)
        elif isinstance(error, KeyboardInterrupt) and was_lost_by_us(error):
            self._send_later(signal.SIGINT)
        elif not is_broken_stdout(error):
            tracebacks.show_lost(args)


def was_lost_by_us(error: KeyboardInterrupt) -> bool:
    """Whether it arrived in a finalizer of ours: in our code, or in Python's that was to call it.

    A script without simulation has no finalizers of storages: the interrupt would have met it.
    """
    outermost = error.__traceback__
    return outermost is not None and (
        tracebacks.begins_with_us(error) or is_in_finalizer(outermost.tb_frame)
    )


def is_broken_stdout(error: BaseException | None) -> bool:
    """Nobody reads the script's output any more: `| head`. No reason to complain."""
    if not isinstance(error, BrokenPipeError):
        return False
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):  # not a file
        return False


def flush_outputs() -> None:
    """Flushes as Python does at its end; a reader that is gone is no reason to complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # broken, closed, or not a stream
            continue


_watching: list[Stopper] = []


def _before_fork() -> None:
    # A SIGTERM between the fork and our leaving the child would be lost: Python forgets, in a new
    # process, what has arrived and was not handled yet. Blocked, it waits.
    if _watching:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_child() -> None:
    for stopper in _watching:
        stopper.leave_in_child()
    _after_fork()


def _after_fork() -> None:
    if _watching:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
