"""The progress display of all commands: on a terminal, elsewhere, and with nobody reading."""

import io

from torchtally.progress import CLEAR_BELOW, CLEAR_LINE, StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_moves_on_a_terminal_and_is_taken_away() -> None:
    stream, now = Terminal(), [0.0]
    with StatusLine(stream, clock=lambda: now[0]) as status:
        for now[0], share in ((1.0, 0.0), (1.1, 0.2), (2.0, 0.5)):
            status.show("measuring memory", share=share)
    assert stream.getvalue() == (
        f"{CLEAR_LINE}tally: measuring memory, 1.00 s"
        f"{CLEAR_LINE}tally: measuring memory, 2.00 s, 2.00 s left{CLEAR_LINE}"
    )


def test_a_line_is_cut_to_the_terminal_less_its_last_column() -> None:
    stream = Terminal()
    StatusLine(stream, width=40).draw("x" * 100)
    assert stream.getvalue() == CLEAR_LINE + "x" * 39


def test_a_pipe_gets_a_line_now_and_then() -> None:
    stream, now = io.StringIO(), [0.0]
    with StatusLine(stream, clock=lambda: now[0], sparse_s=10) as status:
        for now[0] in (1.0, 10.0, 11.0, 19.9, 20.0):
            status.show("reading")
        status.show("a new stage", at_once=True)
    assert stream.getvalue().splitlines() == [
        "tally: reading, 10.00 s",
        "tally: reading, 20.00 s",
        "tally: a new stage, 20.00 s",
    ]


def test_lines_that_stay_stand_above_the_one_that_moves() -> None:
    stream = Terminal()
    status = StatusLine(stream)
    status.draw("moving")
    status.say("staying\x1b[2J\nand this")
    assert stream.getvalue() == f"{CLEAR_LINE}moving{CLEAR_LINE}staying[2J\nand this\n"


def test_quiet_writes_nothing() -> None:
    stream = Terminal()
    with StatusLine(stream, is_quiet=True) as status:
        status.show("x", at_once=True)
        status.draw("x")
        status.say("x")
    assert stream.getvalue() == ""


def test_a_closed_stream_does_not_end_the_work() -> None:
    stream = Terminal()
    status = StatusLine(stream)
    status.draw("before")
    status._write = lambda text: (_ for _ in ()).throw(BrokenPipeError())
    status.draw("after")
    assert stream.getvalue() == f"{CLEAR_LINE}before"


def test_several_lines_are_drawn_in_the_place_of_the_last_ones_and_taken_away() -> None:
    stream = Terminal()
    status = StatusLine(stream)
    status.draw_lines(["one", "two", "three"])
    status.draw_lines(["1", "2"])
    status.erase()
    status.erase()
    assert stream.getvalue() == (
        f"{CLEAR_LINE}one\n{CLEAR_LINE}two\n{CLEAR_LINE}three"
        f"\x1b[2A{CLEAR_LINE}1\n{CLEAR_LINE}2{CLEAR_BELOW}"
        f"\x1b[1A{CLEAR_LINE}{CLEAR_BELOW}"
    )


def test_a_pipe_gets_no_several_lines() -> None:
    stream = io.StringIO()
    StatusLine(stream).draw_lines(["one", "two"])
    assert stream.getvalue() == ""


def test_below_a_line_that_has_not_ended_the_cursor_comes_back() -> None:
    stream = Terminal()
    status = StatusLine(stream)
    status.draw_lines(["one", "two"], below=3)
    status.erase()
    status.draw_lines(["one"], below=0)
    assert stream.getvalue() == (
        f"{CLEAR_BELOW}\n{CLEAR_LINE}one\n{CLEAR_LINE}two\x1b[2A\r\x1b[3C"
        f"{CLEAR_BELOW}"
        f"{CLEAR_BELOW}\n{CLEAR_LINE}one\x1b[1A\r"
    )
