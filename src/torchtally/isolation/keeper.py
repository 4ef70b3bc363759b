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
from queue import SimpleQueue
from typing import Any, TypeVar

from torchtally.isolation.callers import Ours

T = TypeVar("T")


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
        """What the function returns or raises, called by a free thread; in a process that the
        script has forked, which has none, by this one.

        What a signal's handler raises meanwhile is raised there, too, and ends it.
        """
        if os.getpid() != self._process:
            return function(*args, **options)
        task = FreeCall(function, args, options)
        collects = gc.isenabled()
        gc.disable()  # a finalizer of the script's must not run in a free thread
        try:
            self._work.put(task.run)
            task.wait()
        finally:
            if collects:
                gc.enable()
        return task.result()  # type: ignore[no-any-return]


class FreeCall:
    """One call."""

    def __init__(self, function: Callable[..., Any], args: Any, options: Any) -> None:
        self._function, self._args, self._options = function, args, options
        self._ident: int | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._done: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        ident = self._ident = threading.get_ident()
        try:
            with suppress(BaseException):  # an interrupt that came too late
                with Ours.thread():
                    self._run()
                self._ident = None
        finally:
            self._done.put(None)
            # What asked for `threading.current_thread()` here has made one of the script's list.
            threading._active.pop(ident, None)  # type: ignore[attr-defined]

    def _run(self) -> None:
        try:
            self._value = self._function(*self._args, **self._options)
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        try:
            self._done.get()
        except BaseException as error:
            self._interrupt(type(error))
            self._done.get()
            raise

    def _interrupt(self, kind: type[BaseException]) -> None:
        if self._ident is not None:
            ident, raised = ctypes.c_ulong(self._ident), ctypes.py_object(kind)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, raised)

    def result(self) -> Any:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # no cycle with its traceback
        return self._value
