"""`torch.cuda.Event`: the moments it remembers, and whose time is between two of them."""

import pytest
import torch

import torchtally
from torchtally.errors import UnsupportedError
from torchtally.virtual.streams import Stopwatch


def milliseconds(start: int, end: int) -> float:
    """A device on which every operator takes one: seconds, as stopwatches give them."""
    assert start <= end
    return (end - start) * 1e-3


def timed() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def test_the_stopwatch_is_asked_for_the_operators_between():
    asked = []

    def stopwatch(start: int, end: int) -> float:
        asked.append((start, end))
        return 0.25

    with torchtally.virtual_gpu("H100-SXM", stopwatch=stopwatch):
        start, end = timed(), timed()
        x = torch.zeros(2, device="cuda")
        start.record()
        x + 1
        torch.ones(2) + 1  # the host's own
        x + 2
        end.record()
        x + 3
        torch.cuda.synchronize()
        assert start.elapsed_time(end) == 250.0
    assert asked == [(1, 3)]


def test_torch_event_recorded_by_a_stream():
    with torchtally.virtual_gpu("H100-SXM", stopwatch=milliseconds):
        x = torch.zeros(2, device="cuda")
        start = torch.Event("cuda", enable_timing=True)
        end = torch.Event(device="cuda", enable_timing=True)
        torch.cuda.current_stream().record_event(start)
        x + 1
        torch.cuda.current_stream().record_event(end)
        assert start.elapsed_time(end) == 1.0
        assert end.elapsed_time(start) == -1.0
        assert end.query()


def test_recorded_again_is_a_new_moment():
    with torchtally.virtual_gpu("H100-SXM", stopwatch=milliseconds):
        start, end = timed(), timed()
        start.record()
        for count in range(1, 4):
            torch.zeros(2, device="cuda")
            end.record()
            assert start.elapsed_time(end) == pytest.approx(count)


def test_without_a_stopwatch_there_is_no_time():
    with torchtally.virtual_gpu("H100-SXM"):
        start, end = timed(), timed()
        start.record()
        end.record()
        end.synchronize()
        with pytest.raises(UnsupportedError, match=r"torchtally\.run.*`tally run`"):
            start.elapsed_time(end)


@pytest.mark.parametrize("stopwatch", [None, milliseconds])
def test_torchs_own_refusals(stopwatch: Stopwatch | None):
    with torchtally.virtual_gpu("H100-SXM", stopwatch=stopwatch):
        recorded, untimed = timed(), torch.cuda.Event()
        recorded.record()
        untimed.record()
        for start, end in ((recorded, untimed), (untimed, recorded), (timed(), untimed)):
            with pytest.raises(ValueError, match="created with argument 'enable_timing=True'"):
                start.elapsed_time(end)
        for start, end in ((recorded, timed()), (timed(), recorded)):
            with pytest.raises(ValueError, match="must be recorded before calculating"):
                start.elapsed_time(end)


def test_an_event_of_another_session_was_not_recorded_in_this_one():
    with torchtally.virtual_gpu("H100-SXM", stopwatch=milliseconds):
        old = timed()
        old.record()
    with torchtally.virtual_gpu("H100-SXM", stopwatch=milliseconds):
        new = timed()
        new.record()
        with pytest.raises(ValueError, match="must be recorded"):
            old.elapsed_time(new)
        old.record()
        assert old.elapsed_time(new) == 0.0
