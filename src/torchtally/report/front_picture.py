"""A front as a picture: what a training costs over how long it takes, by GPUs."""

from collections.abc import Iterator, Sequence

from torchtally.report.chart import ChartAxis, axis
from torchtally.report.page import Html, element
from torchtally.report.tune import letter
from torchtally.tune.answer import TuneAnswer
from torchtally.tune.points import TunePoint, cost_of
from torchtally.units import format_count, format_seconds, format_usd

WIDTH, HEIGHT = 720.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 90.0, 24.0, 56.0, 96.0
TICKS = 5
MARGIN = 0.04
"""Of the graph, beside the outermost points."""
COLOURS = 6
MARK = "<!-- torchtally -->"
"""By which the file is known as ours, and may be replaced."""
STYLE = """
svg { background: #ffffff; font: 14px system-ui, sans-serif; }
text { fill: #1c2126; } .faint { fill: #5c6670; } .rule { stroke: #c8ced4; }
.end { text-anchor: end; } .middle { text-anchor: middle; } .front { fill: none; stroke: #8a939c; }
.other { opacity: 0.35; }
.c0 { fill: #2f6fab; } .c1 { fill: #c4572f; } .c2 { fill: #3d8b4f; }
.c3 { fill: #8a5fb0; } .c4 { fill: #b0872a; } .c5 { fill: #2a9496; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171a; } text { fill: #e6e9ec; } .faint { fill: #a0a9b4; }
  .rule { stroke: #3a4149; } .front { stroke: #7b858f; }
  .c0 { fill: #5c9bd6; } .c1 { fill: #e27f58; } .c2 { fill: #55b06b; }
  .c3 { fill: #b18ad6; } .c4 { fill: #d6b04f; } .c5 { fill: #4fc0c2; }
}
"""

Placed = tuple[TunePoint, float, float]
"""(point, seconds, USD)"""


def front_picture(answer: TuneAnswer) -> str:
    """An SVG that stands by itself: points of the front with their letters, the others faint."""
    placed = [
        (point, cost.seconds, cost.cost_usd)
        for point in answer.points
        if (cost := cost_of(point, answer.amount)) is not None and cost.cost_usd is not None
    ]
    title = f"{format_count(answer.amount)} {answer.length_in}: cost over time"
    gpus = list(dict.fromkeys(point.gpus for point in answer.points))
    parts = [
        Html(MARK),
        element("style", Html(STYLE)),
        element("rect", width="100%", height="100%", fill="none"),
        element("text", title if placed else f"{title}: no priced points", x=20, y=28),
        *(_graph(answer, placed, gpus) if placed else ()),
    ]
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    xmlns = "http://www.w3.org/2000/svg"
    return element("svg", *parts, xmlns=xmlns, viewBox=box, role="img", aria_label=title) + "\n"


def _graph(answer: TuneAnswer, placed: Sequence[Placed], gpus: list[str]) -> Iterator[Html]:
    x_axis, y_axis = axis([each[1] for each in placed]), axis([each[2] for each in placed])

    def place(seconds: float, usd: float) -> tuple[float, float]:
        return _x(x_axis.share(seconds)), _y(y_axis.share(usd))

    yield from _ticks(x_axis, y_axis)
    shown = answer.front
    on_line = [place(each[1], each[2]) for each in _staircase(placed)]
    if len(on_line) > 1:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in on_line)
        yield element("polyline", points=points, class_="front")
    for point, seconds, usd in sorted(placed, key=lambda each: each[0] in shown):
        x, y = place(seconds, usd)
        colour = f"c{gpus.index(point.gpus) % COLOURS}"
        hover = element(
            "title",
            f"{point.gpus}, {answer.text(point)}: {format_seconds(seconds)}, {format_usd(usd)}",
        )
        if point in shown:
            yield element("circle", hover, cx=x, cy=y, r=6, class_=colour)
            name = letter(shown.index(point))
            yield element("text", name, x=x + 9, y=y - 7)
        else:
            yield element("circle", hover, cx=x, cy=y, r=3.5, class_=f"{colour} other")
    at = LEFT
    for place_, name in enumerate(gpus):
        yield element("circle", cx=at, cy=HEIGHT - 20, r=6, class_=f"c{place_ % COLOURS}")
        yield element("text", name, x=at + 12, y=HEIGHT - 15, class_="faint")
        at += 36 + 8.5 * len(name)


def _staircase(placed: Sequence[Placed]) -> Iterator[Placed]:
    """The fastest, then each that is cheaper than all before it, of those that were run."""
    least = float("inf")
    for each in sorted(placed, key=lambda each: (each[1], each[2])):
        if each[0].was_run and each[2] < least:
            least = each[2]
            yield each


def _x(share: float) -> float:
    return LEFT + (MARGIN + share * (1 - 2 * MARGIN)) * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (MARGIN + share * (1 - 2 * MARGIN)) * (HEIGHT - TOP - BOTTOM)


def _ticks(x_axis: ChartAxis, y_axis: ChartAxis) -> Iterator[Html]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for number in range(TICKS):
        share = number / (TICKS - 1)
        x, y = _x(share), _y(share)
        yield element("line", x1=x, y1=TOP, x2=x, y2=bottom, class_="rule")
        yield element("line", x1=LEFT, y1=y, x2=right, y2=y, class_="rule")
        seconds = format_seconds(x_axis.value(share))
        yield element("text", seconds, x=x, y=bottom + 20, class_="middle faint")
        yield element("text", format_usd(y_axis.value(share)), x=LEFT - 8, y=y + 5,
                      class_="end faint")  # fmt: skip
    scales = [name for name, each in (("time", x_axis), ("cost", y_axis)) if each.is_logarithmic]
    note = f" ({' and '.join(scales)} logarithmic)" if scales else ""
    yield element("text", f"time{note}", x=(LEFT + right) / 2, y=bottom + 42, class_="middle faint")
