"""Work of the script's own code between operators: measured beside the step, and said."""

import json
import threading
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn

from tests.traces import traced
from torchtally.ledger import Ledger, account
from torchtally.report.documents.run import run_document
from torchtally.report.keys import dumps
from torchtally.report.text import opening_sentences
from torchtally.timing.targets import roofline
from torchtally.trace import Frame, ScriptWork, Trace
from torchtally.views.notes import notes
from torchtally.views.script_work import script_work
from torchtally.views.summary import summarise
from torchtally.virtual import script_time
from torchtally.virtual.script_time import SCRIPT_TIME, ScriptTime

WORK_S = 0.4


class Clocks:
    """Of the wall and of the processor, moved on by hand."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def pass_by(self, seconds: float, *, works: bool = True) -> None:
        self.wall_s += seconds
        self.cpu_s += seconds if works else 0.0

    def script_time(self) -> ScriptTime:
        return ScriptTime(lambda: self.wall_s, lambda: self.cpu_s)


def test_the_script_works_between_functions_of_tally() -> None:
    clocks = Clocks()
    script = clocks.script_time()
    clocks.pass_by(1.0)
    with script.stopped():
        clocks.pass_by(10.0)
        with script.stopped():
            clocks.pass_by(10.0)
        clocks.pass_by(10.0)
    clocks.pass_by(2.0)
    with script.stopped():
        assert script.take() == 3.0
        assert script.take() == 0.0


def test_waiting_is_no_work() -> None:
    clocks = Clocks()
    script = clocks.script_time()
    clocks.pass_by(1.0)
    clocks.pass_by(5.0, works=False)
    with script.stopped():
        assert script.take() == 1.0


def test_what_surrounds_operators_is_in_the_time_to_issue_them() -> None:
    clocks = Clocks()
    script = clocks.script_time()
    for _ in range(1000):
        with script.stopped():
            clocks.pass_by(0.01)
        clocks.pass_by(script_time.RESOLUTION_S / 2)
    with script.stopped():
        assert script.take() == 0.0


def test_garbage_is_not_collected_on_the_scripts_time() -> None:
    clocks = Clocks()
    script = clocks.script_time()
    clocks.pass_by(1.0)
    script.collection("start", {})
    clocks.pass_by(7.0)
    script.collection("stop", {})
    with script.stopped():
        assert script.take() == 1.0


def test_another_thread_is_beside_the_one_that_runs_operators() -> None:
    clocks = Clocks()
    script = clocks.script_time()

    def beside() -> None:
        with script.stopped():
            clocks.pass_by(10.0)

    with script.stopped():
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        clocks.pass_by(10.0)
    clocks.pass_by(1.0)
    with script.stopped():
        assert script.take() == 1.0


def test_work_before_another_thread_takes_over_is_left_out() -> None:
    clocks = Clocks()
    script = clocks.script_time()
    taken: list[float] = []

    def train() -> None:
        with script.stopped():
            taken.append(script.take())
        clocks.pass_by(2.0)
        with script.stopped():
            taken.append(script.take())

    clocks.pass_by(1.0)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert taken == [0.0, 2.0]


def test_what_runs_on_the_host_for_the_script_is_its_work() -> None:
    clocks = Clocks()
    script = clocks.script_time()
    with script.stopped():
        script.run(clocks.pass_by, (2.0,), {})
        with script.stopped():
            script.run(clocks.pass_by, (4.0,), {"works": True})
        assert script.take() == 2.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Those by which the script is measured."""
    clocks = Clocks()
    for name, value in {
        "_wall_s": lambda: clocks.wall_s, "_cpu_s": lambda: clocks.cpu_s,
        "_since": 0.0, "_read_at": 0.0, "_cpu": 0.0, "_worked_s": 0.0,
    }.items():  # fmt: skip
        monkeypatch.setattr(SCRIPT_TIME, name, value)
    return clocks


def training(clocks: Clocks, work_s: float = 0.0, logging_s: float = 0.0) -> Callable[[], None]:
    """Four steps that work for their batch and, in the second of them, for a log before it."""

    def script() -> None:
        clocks.pass_by(100.0)
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            clocks.pass_by(work_s)
            x = torch.zeros(8, 64, device="cuda")
            model(x).sum().backward()
            clocks.pass_by(logging_s if step == 1 else 0.0)
            optimizer.step()
            optimizer.zero_grad()

    return script


def accounted(trace: Trace, **options: str) -> Ledger:
    return account(trace, roofline=roofline("H100-SXM"), **options)  # type: ignore[arg-type]


def test_a_step_waits_for_its_script(clocks: Clocks) -> None:
    ledger = accounted(traced(training(clocks, WORK_S, logging_s=9.0)))
    work = script_work(ledger)
    assert work is not None
    assert work.script_s == pytest.approx(WORK_S)
    assert work.is_slower
    text = " ".join(opening_sentences(summarise(ledger)))
    assert "The script's own code between operators is not included" in text
    assert "400.0 ms a step" in text
    assert "at most 2.5 steps/s" in text
    assert json.loads(dumps(run_document(ledger)))["script_work"]["script_s"] == work.script_s
    assert "time not included" in [row[0] for row in notes(ledger).rows]


def test_the_line_is_the_one_that_the_work_leads_to(clocks: Clocks) -> None:
    works = traced(training(clocks, WORK_S, logging_s=9.0)).script_work
    lines = [work.frame.text for work in works if work.frame]
    assert len(works) == len(lines) == 6
    assert sum("torch.zeros" in line for line in lines) == 4
    assert sum("optimizer.step()" in line for line in lines) == 1


def test_a_plain_loop_has_no_work_after_its_first_step(clocks: Clocks) -> None:
    ledger = accounted(traced(training(clocks)))
    assert [work.seconds for work in ledger.trace.script_work] == [pytest.approx(100.0)]
    assert script_work(ledger) is None
    assert "own code" not in " ".join(opening_sentences(summarise(ledger)))


def test_operators_and_step_are_the_same_whatever_was_measured(clocks: Clocks) -> None:
    """A comparison of runs, a gate or a budget does not depend on the machine."""
    idle, busy = accounted(traced(training(clocks))), accounted(traced(training(clocks, WORK_S)))
    assert idle.trace.ops == busy.trace.ops
    assert idle.step_s == busy.step_s


def test_one_step_tells_nothing_of_the_others() -> None:
    """It has all before it."""
    clocks = Clocks()
    trace = traced(training(clocks))
    frame = Frame("/home/me/train.py", 1, "<module>", "", True)
    first = msgspec.structs.replace(
        trace, step_ends=trace.step_ends[:1], script_work=(ScriptWork(0, frame, 5.0),)
    )
    assert script_work(accounted(first)) is None
