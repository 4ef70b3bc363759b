"""Plots for a terminal: what stands where, in 80 columns and 24 lines, whatever the names are."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.report.test_text import HOSTILE
from torchtally.report.plot import plot_text, tick_text, value_text
from torchtally.report.report import is_ascii
from torchtally.units import Unit
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot, Scale

BRAILLE = re.compile("[\u2801-\u28ff]")


def roof(**changes: object) -> Plot:
    """100 bytes/s and 1000 FLOP/s: the ridge is at 10 FLOPs a byte, the middle of both axes."""
    plot = Plot(
        title="A roof",
        x=Axis("arithmetic intensity", Scale.FLOPS_PER_BYTE, 0.1, 1000.0),
        y=Axis("speed", Scale.FLOP_PER_S, 1.0, 1e6),
        series_title="bound",
        series=("compute", "memory"),
        curves=(
            Curve("memory", 100.0, Unit.BYTE_PER_S, ((0.1, 10.0), (10.0, 1e3)), Basis.PROMISED),
            Curve("float32", 1e3, Unit.FLOP_PER_S, ((10.0, 1e3), (1e3, 1e3)), Basis.PROMISED),
            Curve("float32", 500.0, Unit.FLOP_PER_S, ((5.0, 500.0), (1e3, 500.0)), Basis.ACHIEVED),
        ),
        marks=(
            Mark(10.0, 100.0, "A", 0, 0.75, "aten.mm", "4 x (2, 2)", "train.py:7"),
            Mark(1.0, 30.0, "", 1, 0.05, "aten.add", "", "train.py:8"),
        ),
        left_out=(("operators without FLOPs", 0.2),),
        note="Take note.",
    )
    plot = replace(plot, listed=plot.marks[:1])
    return replace(plot, **changes)  # type: ignore[arg-type]


def graph(text: str) -> list[str]:
    """The lines between the title and the axis, from the axis on."""
    lines = text.splitlines()
    end = next(n for n, line in enumerate(lines) if re.match(r"\s*[└+][─┬+-]{5}", line))
    return [line[8:] for line in lines[1:end]]


def test_it_fits_a_terminal_of_80_by_24() -> None:
    lines = plot_text(roof()).splitlines()
    assert len(lines) == 24
    assert max(map(cell_len, lines)) <= 80


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_is_no_wider_than_asked_for(width: int, ascii_only: bool) -> None:
    text = plot_text(roof(), width=width, is_ascii=ascii_only)
    assert max(map(cell_len, text.splitlines()[1:-2])) <= max(width, 64)


def test_a_mark_stands_where_its_values_are() -> None:
    """10 is the middle of 0.1 to 1000; 100 FLOP/s is a third of the way up."""
    rows = graph(plot_text(roof()))
    row = next(n for n, line in enumerate(rows) if "A" in line)
    assert row == len(rows) * 2 // 3
    assert abs(rows[row].index("A") - 36) <= 2


def test_the_legend_says_what_the_letters_are() -> None:
    text = plot_text(roof())
    assert re.search(r"A +75\.0 % +100 +10 +compute +aten\.mm +train\.py:7", text)
    assert "Not drawn: operators without FLOPs (20.0 %). Take note." in text
    assert "promised 100.00 B/s, float32 1.00 KFLOP/s" in text
    assert "achieved float32 500.00 FLOP/s" in text
    assert "A roof: FLOP/s by FLOPs/byte" in text


def test_limits_without_room_stand_below() -> None:
    long = Curve("x" * 70, 1e3, Unit.FLOP_PER_S, ((10.0, 1e3), (1e3, 1e3)), Basis.PROMISED)
    text = plot_text(roof(curves=(long,)))
    below = text[text.index("└") :]
    assert "promised" in below
    assert "x" * 70 in below


def test_marks_at_one_place_stand_beside_each_other() -> None:
    marks = tuple(Mark(10.0, 100.0, letter, 0, 0.1, letter) for letter in "ABCDE")
    drawn = "".join(graph(plot_text(roof(marks=marks, listed=marks, curves=()))))
    assert all(drawn.count(letter) == 1 for letter in "ABCDE")


def test_a_plot_without_a_legend_has_a_key() -> None:
    text = plot_text(roof(listed=()))
    assert "A compute" in text
    assert "operator " not in text


def test_ascii_is_ascii() -> None:
    text = plot_text(roof(), is_ascii=True)
    assert text.isascii()
    assert "/" in "".join(graph(text))
    assert not plot_text(roof()).isascii()


def test_the_slope_rises_to_the_ridge_and_is_flat_beyond() -> None:
    rows = graph(plot_text(roof(marks=(), listed=()), is_ascii=True))
    slope = [(n, at) for n, line in enumerate(rows) for at, char in enumerate(line) if char == "/"]
    assert slope == sorted(slope, key=lambda pair: (pair[0], pair[1]))
    assert slope[0][1] > slope[-1][1]
    flat = [line for line in rows if line.rstrip().endswith("-----")]
    assert len(flat) == 1


def test_what_leads_out_of_the_axes_is_cut() -> None:
    steep = Curve("up", 1.0, Unit.FLOP_PER_S, ((1e-3, 1e-9), (1e6, 1e12)), Basis.PROMISED)
    text = plot_text(roof(curves=(steep,)))
    assert BRAILLE.search(text)
    assert max(map(cell_len, text.splitlines())) <= 80


def test_colour_is_there_only_when_asked_for() -> None:
    assert "\x1b" not in plot_text(roof())
    coloured = plot_text(roof(), is_coloured=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == plot_text(roof()).split()
    assert "\x1b[1;32mA" in coloured


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("coloured", [False, True])
def test_hostile_names_are_harmless(text: str, coloured: bool) -> None:
    mark = Mark(10.0, 100.0, "A", 0, 0.75, text, text, text)
    curve = Curve(text, 1e3, Unit.FLOP_PER_S, ((10.0, 1e3), (1e3, 1e3)), Basis.PROMISED)
    plot = roof(title=text, marks=(mark,), listed=(mark,), curves=(curve,), note=text,
                left_out=((text, 0.1),))  # fmt: skip
    drawn = plot_text(plot, is_coloured=coloured)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn) if coloured else drawn
    assert all(char.isprintable() or char == "\n" for char in plain)


def test_an_empty_plot() -> None:
    text = plot_text(roof(marks=(), listed=(), curves=(), left_out=(), note=""))
    assert len(text.splitlines()) == 24


@pytest.mark.parametrize(
    ("value", "scale", "said", "short"),
    [
        (1e12, Scale.FLOP_PER_S, "1.00 TFLOP/s", "1 T"),
        (250.0, Scale.FLOP_PER_S, "250.00 FLOP/s", "250"),
        (1e9, Scale.FLOPS, "1.00 GFLOPs", "1 G"),
        (0.1, Scale.FLOPS_PER_BYTE, "0.1 FLOPs/byte", "0.1"),
        (1000.0, Scale.FLOPS_PER_BYTE, "1e+03 FLOPs/byte", "1000"),
    ],
)
def test_values(value: float, scale: Scale, said: str, short: str) -> None:
    assert value_text(value, scale) == said
    assert tick_text(value, scale) == short


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", False), ("ascii", True), ("latin-1", True), (None, False), ("no such", True)],
)
def test_encodings(encoding: str | None, expected: bool) -> None:
    assert is_ascii(encoding) is expected
