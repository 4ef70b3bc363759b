"""What `tally run --watch` draws: narrow enough, harmless, and no more than the terminal holds."""

import time

import pytest
from rich.cells import cell_len

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site
from tests.report.test_text import HOSTILE
from tests.test_progress import Terminal
from torchtally.chips import chip
from torchtally.ledger import RunningAccount
from torchtally.progress import CLEAR_BELOW
from torchtally.report.run_display import RunDisplay, sparkline
from torchtally.report.run_progress import RunProgress, column_after
from torchtally.timing.roofline import Roofline
from torchtally.trace import Use

GIB = 2**30


def display(*texts: str, is_ascii: bool = False, capacity_bytes: int = 80 * GIB) -> RunDisplay:
    """Of a run with a line for each text, all of them placeholders."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(64, 64))
    for number, text in enumerate(texts):
        where = site(frame(text or "m.py", number, text))
        builder.run(mm_call(64 * (number + 1), 64, 64), (weight, weight), site=where)
    trace = builder.build()
    running = RunningAccount(Roofline(chip("H100-SXM")))
    places = {
        (frame(text, number, text), text, text, Use.BRANCH): 1 for number, text in enumerate(texts)
    }
    shown = RunDisplay(
        running,
        chip="H100-SXM",
        capacity_bytes=capacity_bytes,
        is_coloured=False,
        is_ascii=is_ascii,
    )
    shown.refresh = lambda: running.take(trace.calls, trace.sites, trace.ops, places)
    shown.now_bytes, shown.peak_bytes = (lambda: 20 * GIB), (lambda: 40 * GIB)
    return shown


def size(monkeypatch: pytest.MonkeyPatch, columns: int, rows: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal_whatever_names_are_in_it(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size(monkeypatch, columns, 24)
    lines = display(*HOSTILE).lines(HOSTILE[0])
    assert lines[0] == HOSTILE[0]
    assert all(cell_len(line) < columns for line in lines)
    assert all(char.isprintable() for line in lines for char in line)


def test_there_are_no_more_lines_than_the_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    size(monkeypatch, 80, 5)
    assert len(display("x").lines("step 1")) == 4


def test_the_hottest_line_the_work_and_the_memory_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size(monkeypatch, 94, 24)  # 80 characters of bar
    shown = display("first(x)", "second(x)")
    head, work, memory, bar, course, titles, first, second, *_ = shown.lines("step 1")
    assert head == "step 1"
    assert "1.57 MFLOPs" in work  # 2 * (64 + 128) * 64 * 64
    assert "20.00 GiB now, peak 40.00 GiB of 80.00 GiB (50.0 %)" in memory
    assert "H100-SXM " + "#" * 20 + "-" * 20 + "." in bar  # of 79: the last column stays free
    assert course.endswith("█")
    assert "time" in titles
    assert "second(x)" in first
    assert "first(x)" in second


def test_placeholders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    size(monkeypatch, 100, 24)
    text = "\n".join(display("a.py", "b.py", "c.py").lines(""))
    assert "a.py:0" in text
    assert "(branch, 1 times)" in text
    assert "and 1 more" in text


def test_ascii_terminals_get_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    size(monkeypatch, 80, 24)
    assert all(line.isascii() for line in display("漢字", is_ascii=True).lines("step"))


def test_a_sparkline_keeps_the_largest_of_what_shares_a_place() -> None:
    assert sparkline([0, 8, 0, 4], 2) == "█▅"
    assert sparkline([1, 2], 80) == "▅█"
    assert sparkline([], 80) == sparkline([1], 0) == ""


def test_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtally.report.run_display.SAMPLES", 8)
    shown = display("x")
    for _ in range(100):
        shown.lines("")
        assert len(shown._held) <= 8
    assert max(shown._held) == 40 * GIB


@pytest.mark.parametrize(
    ("tail", "column"),
    [
        ("", 0),
        ("name? ", 6),
        ("\r 40%|####    ", 13),
        ("long text\rshort", 5),
        ("\x1b[32mgreen\x1b[0m\x1b[K", 5),
        ("漢字", 4),
        ("up \x1b[A", None),
        ("tab\t", None),
        ("x" * 80, None),
    ],
)
def test_where_the_cursor_is_behind_what_a_script_printed(
    tail: str, column: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    size(monkeypatch, 80, 24)
    assert column_after(tail) == column


def test_a_bar_of_the_script_s_own_stands_above(monkeypatch: pytest.MonkeyPatch) -> None:
    size(monkeypatch, 80, 24)
    stdout, stderr = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr("sys.stderr", stderr)
    progress = RunProgress(display=display("x"))
    with progress.moving():
        print("\r 10%|#  ", end="")
        while "10%" not in stdout.getvalue() or "work" not in stderr.getvalue():
            time.sleep(0.01)
    drawn = stderr.getvalue()
    assert "A\r\x1b[8C" in drawn  # back up, and behind the bar
    assert drawn.endswith(CLEAR_BELOW)
