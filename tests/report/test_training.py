"""The progress line and the tables, with a clock that stands still until it is told."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.progress import CLEAR_LINE, INTERVAL_S, WIDTH, StepRecord
from torchtally.report.training import Rate, TrainingProgress, progress_line
from torchtally.report.training_plan import PlanRow, plan_table
from torchtally.units import Unit, format_loss


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rate_of(*steps_s: float, warming_steps: int = 0) -> Rate:
    rate = Rate(warming_steps=warming_steps)
    for step_s in steps_s:
        rate.add(step_s)
    return rate


# The rate ---------------------------------------------------------------------------------------


def test_the_first_steps_are_not_in_the_rate() -> None:
    assert rate_of(60.0, 30.0, warming_steps=2).step_s is None
    assert rate_of(60.0, 30.0, 2.0, warming_steps=2).step_s == pytest.approx(2.0)
    assert rate_of(60.0, 30.0, *[2.0] * 51, warming_steps=2).step_s == pytest.approx(2.0)


def test_the_rate_is_smoothed_and_forgets() -> None:
    step_s = rate_of(*[1.0] * 20, 2.0).step_s
    assert step_s is not None
    assert 1.05 < step_s < 1.15
    assert rate_of(*[1.0] * 20, *[2.0] * 61).step_s == pytest.approx(2.0, rel=0.01)


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=30))
def test_a_rate_lies_between_the_fastest_and_the_slowest_step(taken_s: list[float]) -> None:
    step_s = rate_of(*taken_s).step_s
    assert step_s is not None
    assert min(taken_s) * 0.999 <= step_s <= max(taken_s) * 1.001


# The line ---------------------------------------------------------------------------------------

FULL = StepRecord(
    loss=2.3456, step_s=1.0, tokens_per_s=12_345.6, mfu=0.431, wait_s=0.001, peak_bytes=5 * 2**28
)


def test_a_line_says_it_all_in_80_columns() -> None:
    assert progress_line(1200, FULL, steps=5000, left_s=210.0, predicted_bytes=6 * 2**28) == (
        "1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.50 GiB"
    )


def test_a_wait_is_shown_where_it_costs_something() -> None:
    moment = StepRecord(loss=2.0, step_s=1.0, wait_s=0.25)
    assert progress_line(1, moment, steps=9) == "1/9  loss 2.000  wait 25.0 %"
    moment = StepRecord(loss=2.0, step_s=1.0, wait_s=0.001)
    assert progress_line(1, moment, steps=9) == "1/9  loss 2.000"


def test_memory_in_two_units_has_both() -> None:
    moment = StepRecord(loss=2.0, peak_bytes=512)
    line = progress_line(1, moment, steps=9, predicted_bytes=2**20)
    assert line.endswith("  512 B/1.00 MiB")
    assert progress_line(1, moment, steps=9).endswith("  512 B")


@given(
    step=st.integers(0, 10**9), loss=st.floats(), rate=st.floats(0, 1e15), mfu=st.floats(0, 2),
    wait_s=st.floats(0, 1e6), size=st.integers(0, 2**60), left_s=st.floats(0, 1e12),
    width=st.integers(20, 120),
)  # fmt: skip
def test_no_line_is_wider_than_its_room(
    step: int, loss: float, rate: float, mfu: float, wait_s: float, size: int, left_s: float,
    width: int,
) -> None:  # fmt: skip
    moment = StepRecord(
        loss=loss, step_s=1.0, tokens_per_s=rate, mfu=mfu, wait_s=wait_s, peak_bytes=size
    )
    line = progress_line(
        step, moment, steps=10**9, left_s=left_s, width=width, predicted_bytes=size // 3
    )
    assert len(line) <= width
    assert line.isprintable()


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (10.8249, "10.82"), (2.3456, "2.346"), (0.123456, "0.1235"), (2.0, "2.000"),
        (1.2345e-5, "1.234e-05"), (999.9, "999.9"), (999.96, "1.000e+03"),
        (123456.0, "1.235e+05"), (0.0, "0.000"), (-3.5, "-3.500"),
        (float("nan"), "nan"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_a_loss_has_four_digits(loss: float, text: str) -> None:
    assert format_loss(loss) == text


# The stream -------------------------------------------------------------------------------------


def shown(stream: io.StringIO, clock: Clock, *, steps: int, every: int, step_s: float) -> str:
    rate = Rate(warming_steps=1)
    progress = TrainingProgress(stream, steps=steps, rate=rate, every=every, clock=clock)
    for step in range(1, steps + 1):
        clock.now_s += step_s
        rate.add(step_s)
        progress.show(step, StepRecord(loss=1.0))
    progress.close()
    return stream.getvalue()


def test_a_pipe_gets_plain_lines_now_and_then(clock: Clock) -> None:
    text = shown(io.StringIO(), clock, steps=25, every=10, step_s=60.0)
    assert text.splitlines() == [
        "1/25  loss 1.000",
        "10/25  loss 1.000  15.00 min left",
        "20/25  loss 1.000  5.00 min left",
        "25/25  loss 1.000  0 s left",
    ]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_a_terminal_gets_one_line_that_moves(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    text = shown(Terminal(), clock, steps=25, every=10, step_s=60.0)
    assert text.count(CLEAR_LINE) == 25
    assert text.count("\n") == 1
    assert text.endswith("25/25  loss 1.000  0 s left\n")


def test_fast_steps_are_not_all_drawn(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    text = shown(Terminal(), clock, steps=100, every=10, step_s=INTERVAL_S / 10)
    assert 9 <= text.count(CLEAR_LINE) <= 12
    assert "100/100" in text


def test_a_dumb_terminal_gets_plain_lines(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(Terminal(), clock, steps=2, every=1, step_s=1.0)


def test_what_is_said_stays_above_the_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)
    stream = Terminal()
    progress = TrainingProgress(stream, steps=9, rate=Rate(), every=1, clock=clock)
    progress.show(1, StepRecord(loss=1.0))
    progress.say("step 2: a \x1b[31mspike\x07\nand more")
    progress.close()
    drawn = f"{CLEAR_LINE}1/9  loss 1.000{CLEAR_LINE}"
    assert stream.getvalue() == f"{drawn}step 2: a [31mspike\nand more\n"


def test_letters_that_a_stream_has_not_are_replaced(clock: Clock) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    progress = TrainingProgress(stream, steps=9, rate=Rate(), every=1, clock=clock)
    progress.say("naïve")
    assert stream.buffer.getvalue() == b"na?ve\n"  # type: ignore[attr-defined]


def test_nobody_listening_is_no_error(clock: Clock) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert shown(Broken(), clock, steps=3, every=1, step_s=1.0) == ""


# Tables -----------------------------------------------------------------------------------------

PLAN = [
    PlanRow("parameters", 2**30, Unit.BYTES, 2**30),
    PlanRow("activations", 2**31, Unit.BYTES, 3 * 2**30),
    PlanRow("all", 3 * 2**30, Unit.BYTES, 2**32, is_total=True),
    PlanRow("step", 0.2, Unit.SECONDS, 0.15),
]


def test_before_the_first_step_there_are_predictions() -> None:
    rows = [PlanRow(row.name, row.predicted, row.unit, is_total=row.is_total) for row in PLAN]
    assert plan_table("Memory and time", rows) == (
        "Memory and time\n"
        "               predicted\n"
        "  parameters    1.00 GiB\n"
        "  activations   2.00 GiB\n"
        "               ---------\n"
        "  all           3.00 GiB\n"
        "  step          200.0 ms\n"
    )


def test_after_it_measurements_stand_beside_them() -> None:
    assert plan_table("Memory and time", PLAN) == (
        "Memory and time\n"
        "               predicted  measured  difference\n"
        "  parameters    1.00 GiB  1.00 GiB      +0.0 %\n"
        "  activations   2.00 GiB  3.00 GiB     +50.0 %\n"
        "               ---------  --------  ----------\n"
        "  all           3.00 GiB  4.00 GiB     +33.3 %\n"
        "  step          200.0 ms  150.0 ms     -25.0 %\n"
    )


def test_what_is_not_known_is_left_empty() -> None:
    rows = [
        PlanRow("a", None, Unit.BYTES, 5),
        PlanRow("b", 0, Unit.BYTES, 5),
        PlanRow("c", 4, Unit.BYTES),
    ]
    lines = plan_table("t", rows).splitlines()[2:]
    assert [line.split() for line in lines] == [["a", "5", "B"], ["b", "0", "B", "5", "B"],
                                            ["c", "4", "B"]]  # fmt: skip


@given(st.text(), st.text(max_size=200))
def test_no_table_is_wider_than_its_room_or_has_control_characters(title: str, name: str) -> None:
    text = plan_table(title, [PlanRow(name, 1, Unit.BYTES, 2)])
    lines = text.split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
