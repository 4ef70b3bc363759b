"""The script's own events while it is traced: predicted from the trace so far."""

from collections.abc import Sequence

import pytest
import torch

from torchtally.errors import UnsupportedError
from torchtally.ledger import Ledger, account
from torchtally.runs.function import run
from torchtally.timing.schedule import DeviceQueue
from torchtally.timing.targets import roofline
from torchtally.trace import Call, Op
from torchtally.tracer.session import recording


class Predicting:
    """Every operator takes a millisecond; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, tuple[int, ...]]] = []
        self.host_s = 0.0

    def join(self, world: object, groups: object) -> None: ...

    def kernel_s(self, call: Call) -> float:
        return 1e-3

    def advance(
        self, calls: object, ops: Sequence[Op], waits: Sequence[int], tick: int, streams: object
    ) -> None:
        self.told.append((len(ops), tuple(waits)))
        self.ops = ops

    def between(self, first: int, end: int) -> float:
        return 1e-3 * sum(first <= op.clock < end for op in self.ops)


def timed_steps() -> list[float]:
    """Milliseconds of three steps of one, two and three operators."""
    x = torch.zeros(2, device="cuda")
    times = []
    for step in range(1, 4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(step):
            x + 1
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        assert start.elapsed_time(end) == times[-1]
    return times


def test_events_show_what_is_predicted():
    predicting, times = Predicting(), []
    whole = run(lambda: times.extend(timed_steps()), gpu="H100-SXM", prediction=predicting)
    assert times == pytest.approx([1.0, 2.0, 3.0])
    assert [operators for operators, _ in predicting.told] == [2, 2, 4, 4, 7, 7]
    assert predicting.told[-1] == (len(whole.ops), whole.waits)
    assert whole.waits == (2, 4, 7)


def test_each_operator_is_placed_once(monkeypatch: pytest.MonkeyPatch):
    """Asking again and again costs no more than the operators in between."""
    placed = []
    native = DeviceQueue.issue
    monkeypatch.setattr(DeviceQueue, "issue", lambda *args: placed.append(1) or native(*args))
    whole = run(timed_steps, gpu="H100-SXM")
    assert len(placed) == len(whole.ops)


def time_nothing() -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    return start.elapsed_time(end)


def test_without_predictions_the_script_hears_so():
    with (
        recording("H100-SXM", script="without"),
        pytest.raises(UnsupportedError, match="prediction"),
    ):
        time_nothing()


def test_an_event_answers_what_the_ledger_says():
    """A product of 8192 x 8192 matrices: the device's own time, whatever this machine's is."""
    said_ms = []

    def script() -> None:
        a = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ a
        end.record()
        torch.cuda.synchronize()
        said_ms.append(start.elapsed_time(end))

    traced = run(script, gpu="H100-SXM")
    ledger = account(traced, roofline=roofline("H100-SXM"))
    (product,) = (entry for entry in ledger.entries if entry.call.name == "aten.mm")
    assert said_ms == [pytest.approx(ledger.slot(product).seconds * 1e3)]
    assert 2 * 8192**3 / 989.4e12 < ledger.slot(product).kernel_s < 2 * 2 * 8192**3 / 989.4e12


def test_events_know_what_products_take_beside_others():
    """On an L4 a product is faster beside additions than by itself; the ledger says the same."""
    times: list[float] = []

    def step(additions: int) -> None:
        a, b = (torch.empty(4096, 4096, device="cuda") for _ in range(2))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ b
        for _ in range(additions):
            a + b
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))

    def ledger_of(additions: int, gpu: str) -> Ledger:
        trace = run(lambda: step(additions), gpu=gpu)
        return account(trace, roofline=roofline(gpu), step="all")

    def product_s(ledger: Ledger) -> float:
        (product,) = (entry for entry in ledger.entries if entry.call.name == "aten.mm")
        return ledger.times.kernel_s([product])

    alone, beside = ledger_of(0, "L4"), ledger_of(8, "L4")
    assert product_s(beside) < 0.9 * product_s(alone)
    assert times == pytest.approx([1e3 * ledger.step_s for ledger in (alone, beside)], rel=0.01)
    assert product_s(ledger_of(8, "H100-SXM")) == product_s(ledger_of(0, "H100-SXM"))
