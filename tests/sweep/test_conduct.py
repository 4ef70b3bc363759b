"""In what order runs are started and noted, and what a signal does."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from torchtally.runs.processes import Exit, Job
from torchtally.sweep import conduct as conduct_module
from torchtally.sweep.conduct import StopSignals, conduct


@pytest.fixture(autouse=True)
def _signals_as_they_come() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, nohup with SIGHUP: undo that here."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in conduct_module.WATCHED}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def job(name: str) -> Job:
    return Job(name=name, arguments=(), output="", folder="")


@dataclass
class Made:
    """Runs that end in the order they began, one each time we look."""

    room: int
    stops_at_once: bool = True
    going: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    is_stopped: bool = False

    def __enter__(self) -> "Made":
        return self

    def __exit__(self, *_: Any) -> None: ...

    @property
    def has_room(self) -> bool:
        return len(self.going) < self.room

    def start(self, job: Job) -> None:
        assert self.has_room
        self.going.append(job.name)
        self.told.append(f"+{job.name}")

    def collect_ended(self) -> list[Exit]:
        if not self.going or (self.is_stopped and not self.stops_at_once):
            return []
        name = self.going.pop(0)
        self.told.append(f"-{name}")
        return [Exit(name, 143 if self.is_stopped else 0, 1.0)]

    def stop(self, name: str | None = None) -> None:
        self.is_stopped = True
        self.told.append("stop")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def conducted(
    executor: Made, signals: StopSignals, passing: Callable[[], None] = lambda: None
) -> list[str]:
    clock = Clock()
    lines: list[str] = []
    conduct(
        map(job, "abcd"), executor, signals,
        started=lambda job: None, ended=lambda exit: lines.append(f"{exit.name}{exit.code}"),
        stopping=lambda count: lines.append(f"stopping {count}"),
        passing=passing, clock=clock, sleep=clock.sleep,
    )  # fmt: skip
    return lines


def test_what_waits_is_started_as_room_is_free() -> None:
    executor = Made(room=2)
    assert conducted(executor, StopSignals()) == ["a0", "b0", "c0", "d0"]
    assert executor.told == ["+a", "+b", "-a", "+c", "-b", "+d", "-c", "-d"]


def at_the(count: int, number: int, times: int = 1) -> Callable[[], None]:
    """Send ourselves a signal when time has passed so often."""
    left = [count]

    def passing() -> None:
        left[0] -= 1
        if not left[0]:
            for _ in range(times):
                signal.raise_signal(number)

    return passing


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_what_goes_on_and_starts_nothing(number: int) -> None:
    executor = Made(room=2)
    with StopSignals() as signals:
        exits = conducted(executor, signals, at_the(2, number))
    assert signals.number == number
    assert exits == ["a0", "b0", "stopping 1", "c143"]
    assert "+d" not in executor.told


def test_a_second_signal_leaves_at_once() -> None:
    executor = Made(room=2, stops_at_once=False)
    with StopSignals() as signals:
        exits = conducted(executor, signals, at_the(1, signal.SIGINT, times=2))
    assert exits == ["a0", "stopping 1"]
    assert signals.count == 2


def test_runs_that_do_not_end_are_not_waited_for_for_ever() -> None:
    executor = Made(room=4, stops_at_once=False)
    with StopSignals() as signals:
        exits = conducted(executor, signals, at_the(1, signal.SIGTERM))
    assert exits == ["a0", "stopping 3"]
    assert conduct_module.SAVING_S > 60


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.number == 0
            assert signal.getsignal(signal.SIGINT) is not interrupt
        assert signal.getsignal(signal.SIGINT) is interrupt
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
