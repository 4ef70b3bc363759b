"""The script's own events while it is traced: predicted from the trace so far."""

import pytest
import torch

from torchtally.errors import UnsupportedError
from torchtally.ledger import account
from torchtally.runs.function import run
from torchtally.timing.targets import roofline
from torchtally.trace import Trace
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.session import recording


class Predicting:
    """Every operator takes a millisecond; remembers the traces it was given."""

    def __init__(self) -> None:
        self.given: list[Trace] = []

    def __call__(self, so_far: Trace, first: int, end: int) -> float:
        self.given.append(so_far)
        return 1e-3 * sum(first <= op.clock < end for op in so_far.ops)


def timed_steps() -> list[float]:
    """Milliseconds of three steps of one, two and three operators."""
    x = torch.zeros(2, device="cuda")
    found = []
    for step in range(1, 4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(step):
            x + 1
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
        assert start.elapsed_time(end) == found[-1]
    return found


def test_events_show_what_is_predicted():
    predicting, found = Predicting(), []
    whole = run(lambda: found.extend(timed_steps()), gpu="H100-SXM", elapsed=predicting)
    assert found == pytest.approx([1.0, 2.0, 3.0])
    assert [len(trace.ops) for trace in predicting.given] == [2, 2, 4, 4, 7, 7]
    for so_far in predicting.given:
        assert so_far.ending.kind == "running"
        assert so_far.ops == whole.ops[: len(so_far.ops)]
        assert so_far.waits == whole.waits[: len(so_far.waits)]
    assert whole.waits == (2, 4, 7)


def test_the_trace_so_far_is_made_once_for_one_moment():
    predicting = Predicting()
    run(timed_steps, gpu="H100-SXM", elapsed=predicting)
    assert len({id(trace) for trace in predicting.given}) == 3


def test_no_trace_is_made_unless_somebody_asks(monkeypatch: pytest.MonkeyPatch):
    made = []
    native = Recorder.trace
    monkeypatch.setattr(
        Recorder,
        "trace",
        lambda *args, **kwargs: made.append(1) or native(*args, **kwargs),
    )

    def script() -> None:
        torch.cuda.Event(enable_timing=True).record()

    run(script, gpu="H100-SXM", elapsed=Predicting())
    assert len(made) == 1


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
