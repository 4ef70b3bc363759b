"""Files that change, traces that are half written, and steps against a prediction.

Time is a number that the tests set; one test follows the log of a real process.
"""

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders import TraceBuilder, factory_call, mm_call
from tests.cli.run_tally import TIMEOUT_S
from tests.profiles.kineto_files import linear_step
from tests.views.stopwatch import stopwatch
from tests.warm import TALLY, warm
from torchtally.errors import TraceFileError, UsageError
from torchtally.ledger import Ledger, account
from torchtally.live.folder import UNREADABLE_S, TraceFolder, worker_of
from torchtally.live.following import INTERVAL_S, Waiting, follow
from torchtally.live.observation import StepObservation
from torchtally.live.prediction import UNPREDICTED, PredictedStep, predicted_step
from torchtally.live.record import TimeOrigin
from torchtally.live.sentences import event_text, prediction_text, summary_text
from torchtally.live.tail import FollowedFile
from torchtally.live.watcher import Happening, Watcher, WatchEvent
from torchtally.runs.explaining import explain
from torchtally.timing.targets import known_roofline
from torchtally.trace import Phase, Role

MIB = 1 << 20
EXPECTED = PredictedStep(
    file="run.tally", chip="H100-SXM", step_s=0.1, tokens=1000, ranks=2, mfu=0.4,
    peak_bytes=100 * MIB, reserved_bytes=200 * MIB,
)  # fmt: skip


def no_traces(path: str) -> Ledger:
    raise AssertionError(path)


def small_ledger() -> Ledger:
    """A step of two products, a millisecond each."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(64, 64), role=Role.PARAMETER)
    for _ in range(2):
        out = builder.run(mm_call(64, 64, 64), (weight, weight))
        builder.run(mm_call(64, 64, 64), (out, weight), phase=Phase.BACKWARD)
        builder.free(out)
        builder.end_step()
    return account(builder.build(), roofline=stopwatch())


# Files -------------------------------------------------------------------------------------------


def test_lines_come_once_they_are_whole(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    tail = FollowedFile(str(log))
    assert list(tail.lines()) == []  # not there yet
    with log.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert list(tail.lines()) == ["one"]
        file.write(b"o\r10%\r\n\nthree")
        assert list(tail.lines()) == ["two", "10%"]
        assert list(tail.lines()) == []
        assert list(tail.last_line()) == ["three"]
        assert list(tail.last_line()) == []


def test_any_pieces_give_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "train.log"
    log.write_bytes("α\nβ γ\r\n\xff\n".encode() + b"\xff\nlast")
    for size in (1, 2, 3, 100):
        monkeypatch.setattr("torchtally.live.tail.READ_BYTES", size)
        tail = FollowedFile(str(log))
        assert [*tail.lines(), *tail.last_line()] == ["α", "β γ", "\xff", "\ufffd", "last"]
        tail.close()


def test_a_truncated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("one\ntwo\n")
    tail = FollowedFile(str(log))
    assert list(tail.lines()) == ["one", "two"]
    log.write_text("3\n")
    assert list(tail.lines()) == ["3"]
    assert "truncated" in tail.notes[0]


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    log, old = tmp_path / "train.log", tmp_path / "train.log.1"
    log.write_text("one\n")
    tail = FollowedFile(str(log))
    assert list(tail.lines()) == ["one"]
    log.rename(old)
    with old.open("a") as file:
        file.write("two\nthree")  # written on: nobody told the process
    assert list(tail.lines()) == ["two"]
    log.write_text("four\n")
    assert list(tail.lines()) == ["three", "four"]
    assert "replaced" in tail.notes[0]


def test_a_line_without_an_end_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtally.live.tail.MOST_LINE_BYTES", 10)
    monkeypatch.setattr("torchtally.live.tail.READ_BYTES", 16)
    log = tmp_path / "train.log"
    log.write_text("x" * 320 + "\nnext\n")
    assert list(FollowedFile(str(log)).lines()) == ["next"]


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(UsageError, match="cannot be followed"):
            list(FollowedFile(str(path)).lines())


# Folders -----------------------------------------------------------------------------------------


def ledger_of(path: str) -> Ledger:
    trace = explain(path)
    return account(trace, roofline=known_roofline(trace.chip))


def test_a_trace_is_explained_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "host_7.123.pt.trace.json"
    content = json.dumps(linear_step().document())
    folder = TraceFolder(str(tmp_path), ledger_of)
    assert list(folder.traces(0)) == []
    path.write_text(content[:-100])
    assert list(folder.traces(1)) == []  # may still grow
    assert list(folder.traces(2)) == []  # unchanged, and not whole
    path.write_text(content)
    assert list(folder.traces(3)) == []
    ((_, read),) = folder.traces(4)
    assert isinstance(read, StepObservation)
    assert read.step_s == pytest.approx(680e-6)
    assert read.idle_share == pytest.approx(70 / 680)
    assert read.peak_bytes == 198 * 512 + 2048  # 101,000 bytes are 198 blocks
    assert list(folder.traces(5)) == []
    assert worker_of(str(path)) == str(tmp_path / "host_7")


def test_a_damaged_trace_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "w.1.pt.trace.json.gz").write_bytes(gzip.compress(b"{}")[:-3])

    folder = TraceFolder(str(tmp_path), ledger_of)
    told = [
        list(folder.traces(now)) for now in (0, 1, 1 + UNREADABLE_S / 2, 1 + UNREADABLE_S, 1000)
    ]
    assert [len(traces) for traces in told] == [0, 0, 0, 1, 0]
    assert "The file is damaged or cut short" in str(told[3][0][1])
    once = list(TraceFolder(str(tmp_path), ledger_of).traces(0, is_last=True))
    assert [type(read) for _, read in once] == [TraceFileError]


# Steps -------------------------------------------------------------------------------------------


def seen(
    watcher: Watcher, *observations: StepObservation, start_s: float = 0.0, every_s: float = 1.0
) -> list[WatchEvent]:
    """All events of observations that arrive one after the other."""
    return [
        event
        for place, observation in enumerate(observations)
        for event in watcher.see("train.log", observation, start_s + place * every_s)
    ]


def steps(*times_s: float) -> list[StepObservation]:
    return [StepObservation(step=10 * place, step_s=s) for place, s in enumerate(times_s)]


def kinds(events: list[WatchEvent]) -> list[Happening]:
    return [event.what for event in events if event.what is not Happening.STEP]


def test_a_step_stands_beside_its_prediction() -> None:
    (event,) = seen(Watcher(EXPECTED, 0.1), StepObservation(step=10, step_s=0.125))
    assert event.comparison.time_deviation == pytest.approx(0.25)
    assert event.tokens_per_s == 8000  # 1000 predicted tokens in 0.125 s
    assert event_text(event) == (
        "step 10: 125.0 ms, predicted 100.0 ms (+25.0 %), 8.00 K tokens/s, MFU 32.0 %"
    )
    assert prediction_text(EXPECTED) == (
        "Predicted by run.tally for H100-SXM: step 100.0 ms, 10.00 K tokens/s, MFU 40.0 %, "
        "peak memory 100.00 MiB."
    )


def test_the_median_of_recent_steps_deviates_and_agrees_again() -> None:
    """The first step is not counted, and one slow step is no trend."""
    watcher = Watcher(EXPECTED, 0.1)
    events = seen(watcher, *steps(9.0, 0.1, 0.1, 0.1, 0.5, 0.12, 0.12, 0.12, 0.1, 0.1, 0.1))
    assert kinds(events) == [Happening.DEVIATES, Happening.AGREED]
    deviating = next(event for event in events if event.what is Happening.DEVIATES)
    assert deviating.observation.step == 60  # of 0.1, 0.1, 0.5, 0.12, 0.12 the median is 0.12
    assert event_text(deviating) == (
        "warning: steps take longer than predicted, by more than 10.0 %: step 120.0 ms, predicted "
        "100.0 ms (+20.0 %)"
    )
    slow = [event for event in events if event.slow is not None]
    assert [(event.observation.step, event.slow) for event in slow] == [(40, pytest.approx(5.0))]


def test_fewer_than_three_steps_are_no_trend_but_a_trace_is() -> None:
    assert kinds(seen(Watcher(EXPECTED, 0.1), *steps(9.0, 0.2, 0.2))) == []
    trace = StepObservation(step_s=0.2, is_profiled=True)
    assert kinds(seen(Watcher(EXPECTED, 0.1), trace)) == [Happening.DEVIATES]
    assert kinds(seen(Watcher(EXPECTED, 1.0), trace)) == []


def test_tokens_per_second_tell_the_step_time() -> None:
    """1000 tokens a step on two GPUs: 2500 tokens/s of each are 0.2 s."""
    (event,) = seen(Watcher(EXPECTED, 0.1), StepObservation(step=1, device_tokens_per_s=2500.0))
    assert (event.comparison.step_s, event.origin) == (pytest.approx(0.2), TimeOrigin.TOKENS)
    (event,) = seen(Watcher(UNPREDICTED, 0.1), StepObservation(step=1, device_tokens_per_s=2500.0))
    assert (event.comparison.step_s, event.tokens_per_s) == (None, None)


def test_stamps_and_arrivals_tell_the_step_time_where_nothing_else_does() -> None:
    stamped = [StepObservation(step=10 * n, logged_at_s=100.0 + 5 * n) for n in range(2)]
    *_, event = seen(Watcher(UNPREDICTED, 0.1), *stamped)
    assert (event.comparison.step_s, event.origin) == (0.5, TimeOrigin.STAMPS)
    bare = [StepObservation(step=n) for n in range(12)]
    events = seen(Watcher(UNPREDICTED, 0.1), *bare, every_s=2.0)
    times = [event.comparison.step_s for event in events]
    # Looks are half a second apart, so a time is taken over five seconds or more: three steps.
    assert times == [None, None, None, 2.0, None, None, 2.0, None, None, 2.0, None, None]
    assert events[3].origin is TimeOrigin.ARRIVALS


def test_a_late_step_is_told_and_told_again_when_twice_as_late() -> None:
    watcher = Watcher(EXPECTED, 0.1)
    seen(watcher, *steps(9.0, 2.0, 2.0), every_s=20.0)  # ten steps of 2 s: every 20 s, last at 40 s
    late = [now for now in range(41, 300) if list(watcher.missing(now))]
    assert late == [101, 163, 287]  # 3 x 20 s after 40 s; then more than 2 x 61 and 2 x 123
    assert watcher.records["train.log"].late == 1
    seen(watcher, StepObservation(step=30, step_s=2.0), start_s=300.0)
    (event,) = watcher.missing(400.0)
    assert event_text(event) == "late: nothing for 1.67 min since step 30, usually 20.00 s"


def test_after_its_end_nothing_is_late() -> None:
    watcher = Watcher(EXPECTED, 0.1)
    (ended,) = seen(watcher, *steps(9.0, 2.0, 2.0), StepObservation(step_s=0.1, is_end=True))[-1:]
    assert event_text(ended) == (
        "the training has ended: 100.0 ms, predicted 100.0 ms (+0.0 %) on average"
    )
    assert list(watcher.missing(1e6)) == []


def test_memory_above_the_prediction_is_told_once() -> None:
    watcher = Watcher(EXPECTED, 0.1)
    events = seen(
        watcher,
        *(StepObservation(step=n, peak_bytes=size * MIB) for n, size in enumerate((50, 120, 130))),
    )
    (deviating,) = (event for event in events if event.what is Happening.DEVIATES)
    assert event_text(deviating) == (
        "warning: more memory is allocated than predicted, by more than 10.0 %: peak memory "
        "120.00 MiB, predicted 100.00 MiB (+20.0 %)"
    )
    assert watcher.records["train.log"].total.memory_deviation == pytest.approx(0.3)


def test_ranks_are_told_apart() -> None:
    watcher = Watcher(EXPECTED, 0.1)
    seen(watcher, *(StepObservation(step=1, rank=rank, step_s=0.1) for rank in (0, 1)))
    assert list(watcher.records) == ["train.log, rank 0", "train.log, rank 1"]


def test_the_summary_is_of_all_steps() -> None:
    watcher = Watcher(EXPECTED, 0.1)
    seen(watcher, *steps(9.0, 0.1, 0.2, 0.3), StepObservation(step=50, step_s=0.2, mfu=0.3))
    assert summary_text(watcher, 80).splitlines() == [
        "train.log: 5 observations, steps 0 to 50",
        "  Step time 200.0 ms, predicted 100.0 ms (+100.0 %); the median of 100.0 ms to",
        "  300.0 ms.",
        "  5.00 K, predicted 10.00 K tokens/s.",
        "  MFU 20.0 %, predicted 40.0 % by the predicted products; 30.0 % as the training",
        "  reports.",
    ]


def test_a_ledger_predicts_its_step() -> None:
    """Two products of a millisecond, forward and backward."""
    expected = predicted_step(small_ledger(), "run.tally")
    assert (expected.chip, expected.step_s) == ("H100-SXM", pytest.approx(0.002))
    assert expected.tokens is None
    assert expected.mfu_at(0.004) == pytest.approx((expected.mfu or 0.0) / 2)


# The loop ----------------------------------------------------------------------------------------


class Stopped(BaseException):
    """As Ctrl-C is, while the loop waits."""


def pace(*actions: Callable[[], object]) -> Waiting:
    """One action in place of each wait, then the end."""
    left, times = iter(actions), itertools.count()

    def wait(seconds: float) -> None:
        assert seconds == INTERVAL_S
        action = next(left, None)
        if action is None:
            raise Stopped
        action()

    return Waiting(clock=lambda: float(next(times)), wait=wait)


def all_of(events: Iterator[WatchEvent]) -> list[WatchEvent]:
    """Until the loop is stopped, which it never is by itself."""
    collected: list[WatchEvent] = []
    while True:
        try:
            collected.append(next(events))
        except Stopped:
            return collected


def line(step: int, milliseconds: float) -> str:
    return f"iter {step}: loss 2.0, time {milliseconds:.2f}ms, mfu 30.00%\n"


def test_a_log_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    watcher = Watcher(EXPECTED, 0.1)
    events = all_of(
        follow(
            str(log), watcher, no_traces,
            pace(lambda: None, lambda: log.write_text(line(0, 900) + line(1, 100))),
        )
    )  # fmt: skip
    assert [event.comparison.step_s for event in events] == [0.9, 0.1]


def test_a_folder_shows_logs_and_traces_as_they_appear(tmp_path: Path) -> None:
    trace = tmp_path / "deep" / "w.1.pt.trace.json"
    trace.parent.mkdir()
    events = all_of(
        follow(
            str(tmp_path), Watcher(UNPREDICTED, 0.1), ledger_of,
            pace(
                lambda: (tmp_path / "a.log").write_text(line(7, 500)),
                lambda: linear_step().write(trace),
                lambda: None,
                lambda: None,
            ),
        )
    )  # fmt: skip
    assert [(Path(event.source).name, event.comparison.step_s) for event in events] == [
        ("a.log", 0.5),
        ("w", pytest.approx(680e-6)),
    ]


def test_once_ends_and_needs_a_step(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with pytest.raises(UsageError, match="no such log or folder"):
        list(follow(str(log), Watcher(UNPREDICTED, 0.1), no_traces, pace(), is_once=True))
    log.write_text("hello\n")
    with pytest.raises(UsageError, match=r"no step in it. Logs of these are known: nanoGPT"):
        list(follow(str(log), Watcher(UNPREDICTED, 0.1), no_traces, pace(), is_once=True))
    log.write_text(line(7, 500).strip())  # its last line has no end
    (event,) = follow(str(log), Watcher(UNPREDICTED, 0.1), no_traces, pace(), is_once=True)
    assert event.observation.step == 7


APPENDING = """\
import time
for step in range(200):
    print(f"iter {step}: loss 2.0, time {100 + step}.00ms, mfu 30.00%", flush=True)
    time.sleep(0.02)
time.sleep(60)
"""


def test_a_real_process_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    """One line for each step in a pipe, then a summary and the exit code of an interrupt."""
    log = tmp_path / "train.log"
    with log.open("wb") as file:
        training = subprocess.Popen([sys.executable, "-c", APPENDING], stdout=file)
    ready = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    watching = subprocess.Popen(
        warm(ready + TALLY, "watch", "train.log", "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        documents = [json.loads(next(watching.stdout)) for _ in range(30)]
        watching.send_signal(signal.SIGINT)
        rest, errors = watching.communicate(timeout=TIMEOUT_S)
    finally:
        training.kill()
        training.wait()
        watching.kill()
    assert documents[0]["kind"] == "watch"
    assert [document["step"] for document in documents[1:]] == list(range(29))
    assert documents[29]["step_s"] == pytest.approx(0.128)
    summary = json.loads(rest.splitlines()[-1])
    assert summary["kind"] == "summary"
    assert summary["observed"] >= 29
    assert (watching.returncode, errors) == (130, "")
