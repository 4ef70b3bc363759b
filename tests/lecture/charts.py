"""Small SVG charts of the lecture's pages: numbers in, a self-contained picture out.

Text has the reader's font, and the colours follow the reader's theme, as the flame graph's do. A
picture's caption, for readers who do not see it, is made from the numbers that are drawn.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from math import ceil, floor, log10

Point = tuple[float, float]
WIDTH = 720
VALUES = 160
"""Room to the right of bars for their values."""
LETTER = 8.4
"""About the width of one, in the font below."""
ROW = 30
COLOURS = ("#2f6fab", "#c2571a", "#3d8b4f", "#8a4fa3", "#9a7d0a", "#4d7f8c")
STYLE = """\
svg { background: #ffffff; font: 14px system-ui, sans-serif; }
text { fill: #1c2126; } .faint { fill: #5c6670; } .rule { stroke: #c8ced4; }
.end { text-anchor: end; } .middle { text-anchor: middle; } .inside { fill: #ffffff; }
polyline { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171a; } text { fill: #e6e9ec; } .faint { fill: #a0a9b4; }
  .rule { stroke: #3a4149; } .inside { fill: #ffffff; }
}
"""


def bars(title: str, rows: Mapping[str, tuple[float, str]], *, is_log: bool = False) -> str:
    """One bar for each name, with its value as text. On a logarithmic scale they begin at 1."""
    lengths = [log10(value) if is_log else value for value, _ in rows.values()]
    begin = room_for(rows)
    scale = (WIDTH - begin - VALUES) / max(lengths)
    parts = []
    for place, (name, (_, text)) in enumerate(rows.items()):
        top, length = 46 + ROW * place, max(lengths[place] * scale, 1)
        parts += [
            label(begin - 10, top + 16, name, "end"),
            box(begin, top, length, ROW - 8, COLOURS[0]),
            label(begin + length + 8, top + 16, text, "faint"),
        ]
    caption = ", ".join(f"{name} {text}" for name, (_, text) in rows.items())
    return picture(title, 56 + ROW * len(rows), parts, caption)


def stacks(title: str, rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """One bar for each name, of parts with a colour each. Parts of the same name are alike."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    begin = room_for(rows)
    scale = (WIDTH - begin - VALUES) / max(sum(row.values()) for row in rows.values())
    parts = []
    for place, (name, row) in enumerate(rows.items()):
        top, left = 46 + ROW * place, begin
        parts.append(label(begin - 10, top + 16, name, "end"))
        for part, value in row.items():
            parts.append(box(left, top, value * scale, ROW - 8, colours[part]))
            left += value * scale
        parts.append(label(left + 8, top + 16, f"{sum(row.values()):g} {unit}", "faint"))
    bottom = 56 + ROW * len(rows)
    parts += key(colours, bottom)
    caption = "; ".join(
        f"{name} {sum(row.values()):g} {unit}, of it "
        + ", ".join(f"{part} {value:g}" for part, value in row.items() if value)
        for name, row in rows.items()
    )
    return picture(title, bottom + 54, parts, caption)


def curves(
    title: str,
    series: Mapping[str, Sequence[Point]],
    across: str,
    upwards: str,
    *,
    across_step: float | None = None,
) -> str:
    """Lines through points, on linear axes from zero upwards, with round numbers along them."""
    points = [point for line in series.values() for point in line]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    heights = round_numbers(0, max(y for _, y in points), past_end=True)
    left, right, roof, bottom = 90, WIDTH - 30, 50, 270

    def place(point: Point) -> Point:
        x, y = point
        width, height = (x - low) / (high - low), y / heights[-1]
        return (left + width * (right - left), bottom - height * (bottom - roof))

    parts = []
    for height in heights:
        _, y = place((low, height))
        parts += [
            f'<line class="rule" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>',
            label(left - 8, y + 5, number(height), "end faint"),
        ]
    for tick in round_numbers(low, high, step=across_step):
        x, _ = place((tick, 0))
        parts += [
            f'<line class="rule" x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}"/>',
            label(x, bottom + 20, number(tick), "middle faint"),
        ]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(series)}
    for name, line in series.items():
        path = " ".join("{:.1f},{:.1f}".format(*place(point)) for point in line)
        parts.append(f'<polyline points="{path}" stroke="{colours[name]}"/>')
    parts.append(label(right, bottom + 42, across, "end"))
    caption = "; ".join(f"{name} {course(line)}".strip() for name, line in series.items())
    return picture(
        f"{title}: {upwards}",
        bottom + 84,
        [*parts, *key(colours, bottom + 52)],
        f"{caption} ({across})",
    )


def course(line: Sequence[Point]) -> str:
    """A line's first and last point in words."""
    (first, begin), (last, end) = line[0], line[-1]
    return f"from {number(begin)} at {number(first)} to {number(end)} at {number(last)}"


def round_numbers(
    low: float, high: float, *, step: float | None = None, past_end: bool = False
) -> list[float]:
    """Multiples of a round step from `low` to `high`; the next one after it, too, on request."""
    if step is None:
        power = 10 ** floor(log10((high - low) / 4))
        step = next(size * power for size in (1, 2, 5, 10) if (high - low) / (size * power) <= 7)
    last = ceil(high / step) if past_end else floor(high / step)
    return [float(f"{count * step:.12g}") for count in range(ceil(low / step), last + 1)]


def cells(title: str, rows: Mapping[str, Sequence[tuple[str, int | None]]]) -> str:
    """Rows of equal cells with a text each; the number is a colour's, None is an empty cell."""
    begin = room_for(rows)
    size = min(34.0, (WIDTH - begin - 20) / max(map(len, rows.values())))
    parts = []
    for place, (name, row) in enumerate(rows.items()):
        top = 46 + 40 * place
        parts.append(label(begin - 10, top + 21, name, "end"))
        for column, (text, colour) in enumerate(row):
            left = begin + column * size
            fill = "none" if colour is None else COLOURS[colour]
            parts.append(box(left, top, size - 2, 32, fill, "rule"))
            style = "middle faint" if colour is None else "middle inside"
            parts.append(label(left + size / 2 - 1, top + 21, text, style))
    caption = ", ".join(
        f"{name} {sum(colour is not None for _, colour in row)}" for name, row in rows.items()
    )
    return picture(title, 56 + 40 * len(rows), parts, caption)


def number(value: float) -> str:
    """Of an axis: three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def room_for(names: Iterable[str]) -> float:
    """To the left of bars."""
    return 30 + LETTER * max(map(len, names))


def key(colours: Mapping[str, str], top: float) -> list[str]:
    """What each colour is, in as many lines as it takes; a colour may have no name."""
    parts, left = [], 20.0
    for name, colour in colours.items():
        if not name:
            continue
        width = 40 + LETTER * len(name)
        if left + width > WIDTH:
            left, top = 20.0, top + 24
        parts += [box(left, top + 4, 14, 14, colour), label(left + 20, top + 16, name, "")]
        left += width
    return parts


def box(left: float, top: float, width: float, height: float, fill: str, style: str = "") -> str:
    return (
        f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" fill="{fill}"/>'
    )


def label(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


CAPTION = re.compile(r'(?<=aria-label=")[^"]*')


def caption_of(svg: str) -> str:
    """What a picture says to readers who do not see it."""
    match = CAPTION.search(svg)
    assert match is not None, svg
    return unescape(match[0])


def picture(title: str, height: float, parts: Sequence[str], caption: str) -> str:
    """A whole SVG; its caption is the title and what was drawn."""
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(f"{title}. {caption}")}">',
        f"<style>\n{STYLE}</style>",
        '<rect width="100%" height="100%" fill="none"/>',
        label(20, 28, title, ""),
        *parts,
        "</svg>\n",
    ))  # fmt: skip
