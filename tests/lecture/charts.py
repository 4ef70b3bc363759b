"""Small SVG charts of the lecture's pages: numbers in, a self-contained picture out.

Text has the reader's font, and the colours follow the reader's theme, as the flame graph's do.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log10

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
    return picture(title, 56 + ROW * len(rows), parts)


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
    return picture(title, bottom + 54, parts)


def curves(title: str, series: Mapping[str, Sequence[Point]], across: str, upwards: str) -> str:
    """Lines through points, on linear axes from zero upwards."""
    points = [point for line in series.values() for point in line]
    low, high, top = min(x for x, _ in points), max(x for x, _ in points), max(y for _, y in points)
    left, right, roof, floor = 90, WIDTH - 30, 50, 270

    def place(point: Point) -> Point:
        x, y = point
        return (left + (x - low) / (high - low) * (right - left), floor - y / top * (floor - roof))

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        _, y = place((low, top * share))
        x, _ = place((low + (high - low) * share, 0))
        parts += [
            f'<line class="rule" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>',
            label(left - 8, y + 5, number(top * share), "end faint"),
            label(x, floor + 20, number(low + (high - low) * share), "middle faint"),
        ]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(series)}
    for name, line in series.items():
        path = " ".join("{:.1f},{:.1f}".format(*place(point)) for point in line)
        parts.append(f'<polyline points="{path}" stroke="{colours[name]}"/>')
    parts.append(label(right, floor + 42, across, "end"))
    return picture(f"{title}: {upwards}", floor + 84, [*parts, *key(colours, floor + 52)])


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
    return picture(title, 56 + 40 * len(rows), parts)


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


def picture(title: str, height: float, parts: Sequence[str]) -> str:
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>\n{STYLE}</style>",
        '<rect width="100%" height="100%" fill="none"/>',
        label(20, 28, title, ""),
        *parts,
        "</svg>\n",
    ))  # fmt: skip
