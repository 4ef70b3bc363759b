"""The thread that is not restricted: it does for a restricted run what only tally may do.

The kernel restricts the thread that asks for it and what that one starts (`kernel`). The keeper
runs before, and starts a thread for each thing to do: saving the trace, a download that is kept, a
mode in the run's own folder. The script's main thread stays restricted until the process has
ended, so that neither an exit handler nor a finalizer at the interpreter's end can harm a file.
"""

import _thread
import ctypes
import gc
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from torchtally.isolation.callers import Ours

T = TypeVar("T")
GRACE_S = 2.0
"""What an interrupted call has to end by itself."""


class Keeper:
    """Starts threads that are as free as the one that made it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._process = os.getpid()
        self._start = _thread.start_new_thread  # another one takes part in the simulation
        # Not a threading.Thread: the script's `threading.enumerate()` is its own.
        self._start(self._serve, ())

    def _serve(self) -> None:
        while True:
            self._start(self._work.get(), ())

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """What a quick function returns or raises, called by a free thread; in a process that the
        script has forked, which has none, by this one.

        What a signal's handler raises meanwhile is raised there, too, once the function has ended.
        """
        return self._call(FreeCall(function, args, options), FreeCall.wait)  # type: ignore[no-any-return]

    def do(self, function: Callable[..., T], *args: Any) -> T:
        """Result as of `call`, for a long function: what a signal's handler raises ends it."""
        return self._call(FreeCall(function, args, {}), FreeCall.interrupt)  # type: ignore[no-any-return]

    def _call(self, task: "FreeCall", give_up: Callable[["FreeCall", BaseException], None]) -> Any:
        if os.getpid() != self._process:
            task.run()
            return task.result()
        collects = gc.isenabled()
        try:
            gc.disable()  # a finalizer of the script's must not run in a free thread
            self._work.put(task.run)
            task.wait()
        except BaseException as error:  # at any of these lines
            if task.has_begun():
                give_up(task, error)
            raise
        finally:
            if collects:
                gc.enable()
        return task.result()


class FreeCall:
    """One call."""

    def __init__(self, function: Callable[..., Any], args: Any, options: Any) -> None:
        self._function, self._args, self._options = function, args, options
        self._begins = _thread.allocate_lock()
        """Held by whoever comes first: the thread that begins it, or the one that gives up."""
        self._ident: int | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._has_ended = False
        self._done: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        if not self._begins.acquire(blocking=False):
            return
        ident = self._ident = threading.get_ident()
        try:
            with suppress(BaseException):  # an interrupt that came too late
                with Ours.thread():
                    self._run()
                self._ident = None
        finally:
            self._has_ended = True
            self._done.put(None)
            # What asked for `threading.current_thread()` here has made one of the script's list.
            threading._active.pop(ident, None)  # type: ignore[attr-defined]

    def _run(self) -> None:
        try:
            self._value = self._function(*self._args, **self._options)
        except BaseException as error:
            self._error = error

    def wait(self, _: BaseException | None = None) -> None:
        if not self._has_ended:  # what was put may be taken: a signal came just then
            self._done.get()

    def has_begun(self) -> bool:
        """Else it never will."""
        return not self._begins.acquire(blocking=False)

    def interrupt(self, error: BaseException) -> None:
        """Let it end soon, by an error of the same kind."""
        if self._ident is not None:
            ident, raised = ctypes.c_ulong(self._ident), ctypes.py_object(type(error))
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, raised)
        if not self._has_ended:
            with suppress(Empty):  # within a system call it hears of nothing
                self._done.get(timeout=GRACE_S)

    def result(self) -> Any:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # no cycle with its traceback
        return self._value
