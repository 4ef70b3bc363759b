"""The clock that a script reads: it advances by predicted time, as on the GPU that is simulated.

A script measures itself by `time.time()` before and after some steps. By the host's clock that is
how long the simulation took, which looks like a measurement and is none. So who reads a clock in
the script, or in a library that measures training, is given the time of the run's schedule: the
host issues operators, waits where it waits, and sleeps. Everything else keeps the real clock:
Python's own modules (timeouts, logging, thread pools), torch, other libraries, other threads.

Not advanced by: what the script computes without torch (`script_work.py` measures it beside), reads
from disks or waits for from other processes. Local time (`time.localtime`, `time.strftime` without
a time) and processor time stay.
"""

import builtins
import datetime
import os
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Protocol

from torchtally.isolation.natives import TIME
from torchtally.isolation.threads import OtherThreads
from torchtally.trace import EffectKind
from torchtally.tracer.source import Code, classify_path
from torchtally.virtual.aliases import replacing
from torchtally.virtual.stand_ins import StandIn, apply

READ_S = 1e-6
"""What reading a clock takes by the clock itself, so that waiting in a loop comes to an end."""
MEASURING = frozenset(
    """
    accelerate composer deepspeed detectron2 diffusers fastai ignite keras lightning
    lightning_fabric lightning_utilities litgpt mmengine peft pytorch_lightning
    sentence_transformers timm torchtitan torchtune transformers trl ultralytics
    """.split()
)
"""Libraries that print how fast a training is."""
PASSED = ("/tqdm/", "/torch/utils/benchmark/")
"""Code that reads a clock for who calls it."""
PASSED_NAMES = ("<timeit-src>", timeit.__file__)
CLOCKS = ("time", "perf_counter", "monotonic")


class HostSchedule(Protocol):
    """How far a run is."""

    def host_s(self) -> float:
        """Seconds since its beginning."""


Report = Callable[[EffectKind, str, FrameType | None], None]


class ScriptClock:
    """Predicted time for the script, the real one for everything else."""

    def __init__(self, schedule: HostSchedule, report: Report) -> None:
        self._schedule = schedule
        self._report = report
        self._others = OtherThreads()
        self._lock = threading.Lock()
        self._is_measuring: dict[str, bool | None] = {}
        """By file: whether its code is given predicted time; None: as its caller is."""
        self._start_s: float = TIME.time()
        self._read_s = 0.0
        self._last_s = -1.0
        self.is_stopped = False

    def elapsed_s(self) -> float:
        """Seconds since the beginning, by the schedule."""
        with self._lock:
            host_s = self._schedule.host_s()
            if host_s == self._last_s:
                self._read_s += READ_S
            self._last_s = host_s
            return host_s + self._read_s

    def answers(self, frame: FrameType | None, name: str) -> bool:
        """Whether who reads a clock is given predicted time."""
        if self.is_stopped or self._others.is_current:
            return False
        reader = frame
        is_measuring = None
        while reader is not None and is_measuring is None:
            path = reader.f_code.co_filename
            if path not in self._is_measuring:
                self._is_measuring[path] = measures(path)
            is_measuring = self._is_measuring[path]
            reader = reader.f_back
        if is_measuring:
            self._report(EffectKind.CLOCK, name, frame)
        return bool(is_measuring)

    def clock(self, name: str, unit: int | None) -> Callable[[], Any]:
        """A stand-in for a function of `time`; `unit`: an int of so many in a second."""
        native, base, shown = getattr(TIME, name), getattr(TIME, name)(), f"time.{name}"

        def read() -> Any:
            if not self.answers(sys._getframe(1), shown):
                return native()
            elapsed_s = self.elapsed_s()
            return base + (elapsed_s if unit is None else round(elapsed_s * unit))

        read.__name__ = read.__qualname__ = name
        return read

    def now_s(self, name: str, reader: FrameType) -> float:
        """Seconds since 1970, for code of which it is known that it measures."""
        if self.is_stopped or self._others.is_current:
            return float(TIME.time())
        self._report(EffectKind.CLOCK, name, reader)
        return self._start_s + self.elapsed_s()


def measures(path: str) -> bool | None:
    """Whether code in a file is the script's or measures trainings; None: it passes it on."""
    if path in PASSED_NAMES or any(part in path for part in PASSED):
        return None
    kind = classify_path(path)
    if kind is not Code.LIBRARY:
        return kind is Code.OWN
    package = path.replace("\\", "/").rpartition("-packages/")[2].partition("/")[0]
    return package.removesuffix(".py") in MEASURING


@contextmanager
def script_clock(schedule: HostSchedule, report: Report) -> Iterator[ScriptClock]:
    """Context in which the script's clocks answer from the schedule."""
    script = ScriptClock(schedule, report)
    _clocks.append(script)
    clocks = {name: script.clock(name, None) for name in CLOCKS}
    clocks |= {f"{name}_ns": script.clock(f"{name}_ns", 10**9) for name in CLOCKS}
    stand_ins = [StandIn(time, name, value) for name, value in clocks.items()]
    by_native = {getattr(TIME, name): value for name, value in clocks.items()}
    with (
        apply([*stand_ins, StandIn(builtins, "__import__", importing(script))]),
        replacing(by_native),
        timing_by(clocks["perf_counter"]),
    ):
        try:
            yield script
        finally:
            script.is_stopped = True
            _clocks.remove(script)


@contextmanager
def timing_by(timer: Callable[[], float]) -> Iterator[None]:
    """Context in which this is the timer of `timeit`, whose functions have it as a default."""
    functions: tuple[Any, ...] = (timeit.Timer.__init__, timeit.timeit, timeit.repeat)
    before = [function.__defaults__ for function in functions]
    for function in functions:
        function.__defaults__ = tuple(
            timer if default is TIME.perf_counter else default for default in function.__defaults__
        )
    try:
        yield
    finally:
        for function, defaults in zip(functions, before, strict=True):
            function.__defaults__ = defaults


_clocks: list[ScriptClock] = []


def _after_fork_in_child() -> None:
    for script in _clocks:
        script.is_stopped = True


os.register_at_fork(after_in_child=_after_fork_in_child)

# datetime ----------------------------------------------------------------------------------------


def importing(script: ScriptClock) -> Callable[..., Any]:
    """`import datetime` and `from datetime import datetime`, in code that measures.

    The class itself cannot be changed, and must not be replaced where pickle looks it up: the
    module is another one for who imports it in the script.
    """
    module = dates_module(script)
    native = builtins.__import__

    def import_(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if name == "datetime" and level == 0 and globals is not None and not script.is_stopped:
            path = globals.get("__file__")
            if isinstance(path, str) and measures(path):
                return module
        return native(name, globals, locals, fromlist, level)

    return import_


def dates_module(script: ScriptClock) -> ModuleType:
    """`datetime` with a class whose `now` is by the script's clock. What it makes is native."""
    native = datetime.datetime

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, native)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, native)

    class Now(native, metaclass=Meta):  # type: ignore[misc,valid-type]
        def __new__(cls, *args: Any, **options: Any) -> Any:
            return native(*args, **options) if cls is Now else native.__new__(cls, *args, **options)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return native.fromtimestamp(script.now_s("datetime.now", sys._getframe(1)), tz)

        @classmethod
        def utcnow(cls) -> Any:
            now_s = script.now_s("datetime.utcnow", sys._getframe(1))
            return native.fromtimestamp(now_s, datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return native.fromtimestamp(script.now_s("datetime.today", sys._getframe(1)))

    Now.__name__ = Now.__qualname__ = "datetime"
    Now.__module__ = "datetime"
    module = ModuleType("datetime", datetime.__doc__)
    vars(module).update(vars(datetime))
    module.datetime = Now  # type: ignore[attr-defined]
    return module
