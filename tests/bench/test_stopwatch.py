"""Measuring, with a clock that is held."""

import torch

from torchtally.bench.stopwatch import LEAST, WARM_UPS, Stopwatch, undisturbed_s

CPU = torch.device("cpu")


class Clock:
    """Goes on only when work is done."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.runs = 0

    def __call__(self) -> float:
        return self.now_s

    def work(self, *takes_s: float):
        """Work that takes these times in turn, the last one from then on."""

        def run() -> None:
            self.now_s += takes_s[min(self.runs, len(takes_s) - 1)]
            self.runs += 1

        return run


def test_the_first_runs_do_not_count():
    clock = Clock()
    assert Stopwatch(CPU, clock=clock).seconds(clock.work(*[9.0] * WARM_UPS, 1.0)) == 1.0


def test_slow_work_is_run_a_few_times_only():
    clock = Clock()
    Stopwatch(CPU, clock=clock).seconds(clock.work(1.0))
    assert clock.runs == WARM_UPS + 1 + LEAST


def test_short_work_is_timed_many_at_once():
    clock = Clock()
    pass_s = Stopwatch(CPU, clock=clock).seconds(clock.work(1e-6))
    assert abs(pass_s - 1e-6) < 1e-9
    assert clock.runs > 100


def test_what_is_left_without_disturbances():
    assert undisturbed_s([1.0, 2.0, 3.0, 50.0, 60.0]) == 2.0
    assert undisturbed_s([3.0]) == 3.0


def test_a_disturbance_does_not_count():
    clock = Clock()
    slow = [1.0] * (WARM_UPS + 2) + [50.0]
    assert Stopwatch(CPU, clock=clock).seconds(clock.work(*slow, 1.0)) == 1.0
