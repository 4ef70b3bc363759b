"""Exponents of numbers as a picture: how many there are of each, over the ranges of formats."""

from collections.abc import Iterator
from math import log2

from torchtally.number_formats import FloatLayout, NumberFormat
from torchtally.number_formats.losses import ScaleKind, TensorStatistics, usual_scale
from torchtally.report.page import Html, element
from torchtally.report.style import style
from torchtally.units import format_count, format_fraction
from torchtally.views.tensor_numbers import TensorNumbers

WIDTH = 720.0
LEFT, RIGHT, TOP, BARS_HEIGHT, ROW = 130.0, 20.0, 62.0, 190.0, 26.0
STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Exponents between two ticks; as few as there is room for."""
MOST_TICKS = 14
MARGIN = 2
"""Exponents beside the first and the last bar."""


def exponents_picture(numbers: TensorNumbers) -> str:
    """An SVG that stands by itself, for all tensors together."""
    total = numbers.total
    formats = [row for row in numbers.formats if isinstance(row.layout, FloatLayout)]
    axis = _Exponents(*_ends(total))
    bottom = TOP + BARS_HEIGHT
    height = bottom + 40 + ROW * len(formats) + 34
    title = f"Magnitudes of {format_count(total.numbers)} numbers, and what formats hold"
    parts = [
        element("style", Html(style("exponents"))),
        element("rect", width="100%", height="100%", fill="none"),
        element("text", title, x=20, y=28),
        *_ticks(axis, bottom, height - 34),
        *_bars(total, axis, bottom),
    ]
    for place, row in enumerate(formats):
        parts += _range(row, axis, bottom + 40 + ROW * place, total.largest)
    parts += _key(height - 14)
    box = f"0 0 {WIDTH:g} {height:g}"
    xmlns = "http://www.w3.org/2000/svg"
    return element("svg", *parts, xmlns=xmlns, viewBox=box, role="img", aria_label=title) + "\n"


class _Exponents:
    """The axis: exponents from `low` to below `high`."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    @property
    def step(self) -> float:
        return (WIDTH - LEFT - RIGHT) / (self.high - self.low)

    def x(self, exponent: float) -> float:
        """Horizontal place of 2**exponent; the end of the axis for what is outside."""
        return LEFT + (min(max(exponent, self.low), self.high) - self.low) * self.step

    def ticks(self) -> range:
        span = self.high - self.low
        size = next((step for step in STEPS if span <= step * MOST_TICKS), STEPS[-1])
        return range(-(-self.low // size) * size, self.high + 1, size)


def _ends(total: TensorStatistics) -> tuple[int, int]:
    exponents = total.exponents or {0: 0}
    return min(exponents) - MARGIN, max(exponents) + 1 + MARGIN


def _ticks(axis: _Exponents, bottom: float, end: float) -> Iterator[Html]:
    for exponent in axis.ticks():
        x = axis.x(exponent)
        yield element("line", x1=x, y1=TOP, x2=x, y2=end, class_="rule")
        power = element("tspan", str(exponent), dy=-6, font_size=11)
        yield element("text", "2", power, x=x, y=bottom + 22, class_="middle faint")


def _bars(total: TensorStatistics, axis: _Exponents, bottom: float) -> Iterator[Html]:
    most = max(total.exponents.values(), default=1)
    share = format_fraction(most / (total.numbers or 1))
    yield element("text", share, x=LEFT - 10, y=TOP + 5, class_="end faint")
    yield element("text", "0", x=LEFT - 10, y=bottom + 5, class_="end faint")
    yield element("line", x1=LEFT, y1=bottom, x2=WIDTH - RIGHT, y2=bottom, class_="rule")
    for exponent, count in total.exponents.items():
        height = BARS_HEIGHT * count / most
        hover = f"2**{exponent} to 2**{exponent + 1}: {format_fraction(count / total.numbers)}"
        yield element(
            "rect", element("title", hover), x=axis.x(exponent), y=bottom - height,
            width=max(axis.step - 1, 0.5), height=height, class_="bar",
        )  # fmt: skip


def _range(row: NumberFormat, axis: _Exponents, top: float, largest: float) -> Iterator[Html]:
    """Subnormal and normal numbers of a format; with a scale, up to the largest number."""
    layout = row.layout
    assert isinstance(layout, FloatLayout)
    is_scaled = usual_scale(row) is not ScaleKind.NONE
    end = log2(layout.largest)
    shift = log2(largest) - end if is_scaled and largest else 0.0
    yield element("text", row.name, x=LEFT - 10, y=top + 14, class_="end")
    subnormal = layout.least_exponent - layout.mantissa_bits
    for begin, stop, name in (
        (subnormal, layout.least_exponent, "subnormal"),
        (layout.least_exponent, end, "normal"),
    ):
        x = axis.x(begin + shift)
        width = axis.x(stop + shift) - x
        if width > 0:
            hover = element("title", f"{row.name}, {name}: from 2**{begin + shift:.3g}")
            yield element("rect", hover, x=x, y=top, width=width, height=ROW - 8, class_=name)


def _key(y: float) -> Iterator[Html]:
    x = LEFT
    for name, text in (("normal", "normal"), ("subnormal", "subnormal")):
        yield element("rect", x=x, y=y - 11, width=12, height=12, class_=name)
        yield element("text", text, x=x + 18, y=y, class_="faint")
        x += 110
    text = "8 bits and fewer: scaled to the largest number"
    yield element("text", text, x=x, y=y, class_="faint")
