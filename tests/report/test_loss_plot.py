"""The plot of the loss: where its points stand, and that it always fits."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.report.loss_plot import LossCurve, loss_plot

LINE = tuple((step, 5.0 - step) for step in range(5))


def graph(curve: LossCurve) -> list[str]:
    """The rows of the graph in letters, without their labels."""
    rows = loss_plot(curve, encoding="ascii").splitlines()[1:-2]
    return [re.sub(r"^[^|+]*[|+]", "", row.replace("e+", "e")) for row in rows]


def test_a_falling_line_by_hand() -> None:
    text = loss_plot(LossCurve(LINE, title="Loss"), width=26, height=8, encoding="ascii")
    assert text == (
        "Loss\n"
        "4.600 +***\n"
        "      |   ****\n"
        "      |       *****\n"
        "      |            ****\n"
        "1.400 +                ***\n"
        "      +-------------------\n"
        "       step 0       step 4\n"
    )


def test_validation_is_marked_over_the_line() -> None:
    curve = LossCurve(LINE, validation=((4, 1.0),), title="Loss of m")
    title, *rows = loss_plot(curve, encoding="ascii").splitlines()
    assert title == "Loss of m (o on validation data)"
    assert [row.strip()[-1] for row in rows if "o" in row.replace("step", "")] == ["o"]
    assert "●" in loss_plot(curve)


def test_more_than_a_decade_is_logarithmic() -> None:
    """An exponential decay is then a straight line: its middle is half way down."""
    points = tuple((step, 1000.0 * 10 ** (-step / 20)) for step in range(101))
    rows = graph(LossCurve(points))
    middle = rows[len(rows) // 2]
    assert abs(middle.index("*") - max(map(len, rows)) / 2) < 6
    flat = graph(LossCurve(tuple((step, 500.0 + loss) for step, loss in points)))
    assert flat[len(flat) // 2].index("*") < 20


def test_what_is_no_number_is_left_out_and_counted() -> None:
    text = loss_plot(LossCurve((*LINE, (5, math.nan), (6, math.inf))))
    assert text.splitlines()[-1] == "Not drawn: 2 NaN or inf losses."
    assert "step 4" in text


def test_without_any_loss_there_is_a_line() -> None:
    assert loss_plot(LossCurve(())) == "Loss: no losses to draw.\n"
    text = loss_plot(LossCurve(((1, math.nan),)))
    assert text == "Loss: no losses to draw. Not drawn: 1 NaN or inf losses.\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no such encoding"])
def test_a_stream_that_cannot_be_given_braille_gets_letters(encoding: str) -> None:
    assert loss_plot(LossCurve(LINE, LINE), encoding=encoding).isascii()


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(-1e6, 1e6) | st.floats()), max_size=30),
    st.integers(20, 100),
    st.integers(8, 30),
    st.sampled_from(["utf-8", "ascii"]),
)
def test_any_curve_fits(
    points: list[tuple[int, float]], width: int, height: int, encoding: str
) -> None:
    curve = LossCurve(tuple(points), tuple(points[:3]), title="t" * 200)
    lines = loss_plot(curve, width=width, height=height, encoding=encoding).splitlines()
    assert max(map(len, lines)) <= width or len(lines) == 1
    assert len(lines) <= height
