"""`time.sleep` of a script is time of its step, at its own line, as long as the script says."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.traces import traced
from torchtally.ledger import Ledger, account
from torchtally.runs.function import run
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Bound
from torchtally.timing.targets import roofline
from torchtally.trace import Call, Phase
from torchtally.trace.sleep import SLEEP
from torchtally.views.throughput import samples_of
from torchtally.views.time_range import time_range

GPU = "H100-SXM"
NAP_S = 0.02
BATCH = 64


def training(
    nap_s: float = 0.0, naps: int = 1, validation: int = 0, nap_each_s: float = 0.0
) -> Callable[[], None]:
    """A script of three steps that sleeps at the end of each, and in each step of validation."""

    def script() -> None:
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.zeros(BATCH, 64, device="cuda")
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(naps):
                time.sleep(nap_s)
            for _ in range(validation):
                with torch.no_grad():
                    model(x)
                    time.sleep(nap_each_s)
                    model(x)

    return script


def ledger_of(script: Callable[[], None], **options: Any) -> Ledger:
    ledger = account(traced(script), roofline=roofline(GPU), **options)
    ledger.check()
    return ledger


def test_a_step_takes_what_its_script_sleeps() -> None:
    awake, asleep = ledger_of(training()), ledger_of(training(NAP_S))
    assert awake.step_s is not None
    assert asleep.step_s == pytest.approx(awake.step_s + NAP_S, rel=0.01)
    assert asleep.by_bound()[Bound.SLEEP].seconds == pytest.approx(NAP_S, rel=0.01)
    assert asleep.total.flops == awake.total.flops
    batch = samples_of(asleep)
    assert batch is not None
    assert batch.size == BATCH


def test_the_line_that_sleeps_has_the_time() -> None:
    lines = ledger_of(training(NAP_S)).by_line()
    slowest, total = max(lines.items(), key=lambda line_total: line_total[1].seconds)
    assert slowest is not None
    assert "time.sleep" in slowest.text
    assert total.seconds == pytest.approx(NAP_S, rel=0.01)


def test_each_sleep_counts() -> None:
    assert ledger_of(training(NAP_S / 4, naps=4)).by_op()[SLEEP].count == 4


def test_a_sleep_has_no_error_of_prediction() -> None:
    likely = time_range(ledger_of(training(NAP_S)))
    assert likely is not None
    assert likely.high_s - likely.low_s < 0.01 * NAP_S


def test_a_device_that_is_behind_loses_nothing() -> None:
    """Products of 10 ms and more that the host has issued go on while it sleeps."""

    def script(nap_s: float) -> Callable[[], None]:
        def train() -> None:
            weight = torch.zeros(
                8192, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True
            )
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for _ in range(3):
                x = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
                for _ in range(10):
                    x = x @ weight
                time.sleep(nap_s)
                x.sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        return train

    awake, asleep = ledger_of(script(0.0)), ledger_of(script(NAP_S / 4))
    assert asleep.step_s == pytest.approx(awake.step_s)


def test_steps_that_sleep_for_longer_and_longer_are_alike() -> None:
    def script() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.zeros(8, 8, device="cuda")).sum().backward()
            time.sleep(1e-3 * step)
            optimizer.step()

    assert {step.like for step in ledger_of(script).course.steps[1:]} <= {1, 2}


def test_sleeping_amid_evaluation_is_in_no_step() -> None:
    awake = ledger_of(training(validation=2))
    asleep = ledger_of(training(validation=2, nap_each_s=NAP_S))
    assert asleep.step_s == pytest.approx(awake.step_s)
    whole = ledger_of(training(validation=2, nap_each_s=NAP_S), step="all")
    assert whole.by_phase()[Phase.EVALUATION].seconds > 6 * NAP_S * 0.99


def test_a_thread_that_waits_for_training_holds_nothing_up() -> None:
    def script() -> None:
        thread = threading.Thread(target=training())
        thread.start()
        while thread.is_alive():
            time.sleep(1e-3)

    assert SLEEP not in ledger_of(script).by_op()


def test_a_schedule_goes_on_beside_a_thread_that_adds_operators() -> None:
    """While the schedule prices new calls, another thread runs an operator of one more."""
    trace = traced(training())
    ops = list(trace.ops[:1])

    class Calls(list[Call]):
        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            if isinstance(place, slice) and len(ops) == 1:
                self.append(trace.calls[1])
                ops.append(msgspec.structs.replace(trace.ops[1], call=1))
            return found

    prediction = Prediction(roofline(GPU))
    calls = Calls(trace.calls[:1])
    prediction.advance(calls, ops, (), trace.ops[0].clock + 1)
    once_s = prediction.host_s
    prediction.advance(calls, ops, (), trace.ops[1].clock + 1)
    assert 0 < once_s < prediction.host_s


def test_the_scripts_clocks_are_right_beside_a_thread_that_trains() -> None:
    """A clock is read while another thread adds operators that no clock has seen."""
    read: list[float] = []
    names = {"__name__": "script", "__file__": "/home/me/script.py", "train": training(1e-4, 20)}
    source = (
        "import threading, time\n"
        "thread = threading.Thread(target=train)\n"
        "thread.start()\n"
        "while thread.is_alive(): read.append(time.perf_counter())\n"
        "thread.join()\n"
    )
    run(
        lambda: exec(compile(source, "/home/me/script.py", "exec"), {**names, "read": read}),
        gpu=GPU,
    )
    assert read == sorted(read)
