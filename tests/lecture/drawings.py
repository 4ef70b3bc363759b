"""Pictures of the lecture that are no charts of rows or curves: numbers in, an SVG out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from tests.lecture.charts import COLOURS, LETTER, ROW, WIDTH, box, key, label, number, picture

LEFT, RIGHT = 90, WIDTH - 30


@dataclass(frozen=True, slots=True)
class Dot:
    """An operator on a roofline: FLOPs a byte, and the FLOP/s reached."""

    name: str
    intensity: float
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that takes from one time to another."""

    lane: str
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Product:
    """Of a chain: from which tensor on, of which kind, and its FLOPs as text."""

    place: int
    kind: str
    name: str
    flops: str


Point = tuple[float, float]


def line(start: Point, end: Point, colour: str = "") -> str:
    style = f'stroke="{colour}" stroke-width="2"' if colour else 'class="rule"'
    (x1, y1), (x2, y2) = start, end
    return f'<line {style} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def arrow(start: Point, end: Point, colour: str) -> str:
    """A line with a head, across or down."""
    (x1, _), (x, y) = start, end
    if x1 == x:
        head = f"{x:.1f},{y:.1f} {x - 5:.1f},{y - 9:.1f} {x + 5:.1f},{y - 9:.1f}"
    else:
        back = x - 9 if x > x1 else x + 9
        head = f"{x:.1f},{y:.1f} {back:.1f},{y - 5:.1f} {back:.1f},{y + 5:.1f}"
    return line(start, end, colour) + f'<polygon points="{head}" fill="{colour}"/>'


def powers(values: Sequence[float]) -> list[int]:
    """Exponents of 10 from below the least to above the largest value."""
    return list(range(floor(log10(min(values))), ceil(log10(max(values))) + 1))


def roofline(title: str, dots: Sequence[Dot], flop_per_s: float, bytes_per_s: float) -> str:
    """Operators under bandwidth and peak, both axes logarithmic."""
    ridge, top, bottom = flop_per_s / bytes_per_s, 50, 330
    across = powers([*(dot.intensity for dot in dots), ridge * 10])
    up = powers([*(dot.flop_per_s for dot in dots), flop_per_s])

    def place(x: float, y: float) -> Point:
        wide = (log10(x) - across[0]) / (across[-1] - across[0])
        high = (log10(y) - up[0]) / (up[-1] - up[0])
        return LEFT + wide * (RIGHT - LEFT), bottom - high * (bottom - top)

    parts = []
    for power in up:
        _, y = place(1, 10.0**power)
        parts += [line((LEFT, y), (RIGHT, y)), label(LEFT - 8, y + 5, f"1e{power}", "end faint")]
    for power in across:
        x, _ = place(10.0**power, 10.0 ** up[0])
        parts.append(label(x, bottom + 20, f"{10.0**power:g}", "middle faint"))
    begin = max(10.0 ** across[0], 10.0 ** up[0] / bytes_per_s)
    corner = place(ridge, flop_per_s)
    parts += [
        line(place(begin, begin * bytes_per_s), corner, COLOURS[1]),
        line(corner, place(10.0 ** across[-1], flop_per_s), COLOURS[1]),
    ]
    names = {}
    for dot, colour in zip(dots, (COLOURS[0], *COLOURS[2:]), strict=False):
        x, y = place(dot.intensity, dot.flop_per_s)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>')
        names[f"{dot.name}: {number(dot.intensity)}"] = colour
    parts.append(label(RIGHT, bottom + 42, "intensity: FLOPs a byte; upwards FLOP/s", "end"))
    caption = ", ".join(
        f"{dot.name} {number(dot.intensity)} FLOPs a byte and {dot.flop_per_s / 1e12:.3g} TFLOP/s"
        for dot in dots
    )
    return picture(
        title,
        bottom + 132,
        [*parts, *key(names, bottom + 52)],
        f"{caption}; the roof bends at {number(ridge)}",
    )


KINDS = {
    "forward": ("forward", COLOURS[0]),
    "input": ("gradient of an input", COLOURS[1]),
    "weight": ("gradient of a weight", COLOURS[2]),
}


def chain(title: str, tensors: Sequence[str], products: Sequence[Product]) -> str:
    """Tensors in a row, their gradients below, and the products between them as arrows."""
    parts, gap = [], (WIDTH - 140) / (len(tensors) - 1)
    for place, name in enumerate(tensors):
        parts += node(15 + place * gap, 70, name)
        if place:  # the input of all needs no gradient
            parts += node(15 + place * gap, 180, f"d {name}")
    for product in products:
        left, right = 128 + product.place * gap, 12 + (product.place + 1) * gap
        colour = KINDS[product.kind][1]
        if product.kind == "forward":
            shown, (x, y) = arrow((left, 88), (right, 88), colour), ((left + right) / 2, 56)
        elif product.kind == "input":
            shown, (x, y) = arrow((right, 198), (left, 198), colour), ((left + right) / 2, 166)
        else:
            x, y = right + 58, 284
            shown = arrow((x, 218), (x, y - 18), colour)
        parts += [shown, label(x, y, product.name, "middle")]
        parts.append(label(x, y + 20, product.flops, "middle faint"))
    caption = ", ".join(f"{product.name} {product.flops}" for product in products)
    return picture(title, 350, [*parts, *key(dict(KINDS.values()), 316)], caption)


def node(left: float, top: float, text: str) -> list[str]:
    return [box(left, top, 110, 36, "none", "rule"), label(left + 55, top + 23, text, "middle")]


@dataclass(frozen=True, slots=True)
class Range:
    """A format's positive numbers."""

    smallest: float
    smallest_normal: float
    spacing_at_one: float
    largest: float

    @property
    def steps(self) -> int:
        """From 1 to 1.25."""
        return round(0.25 / self.spacing_at_one)


def number_lines(title: str, rows: Mapping[str, Range]) -> str:
    """Each format's whole range on a logarithmic line, and its numbers from 1 to 1.25."""
    parts, left, middle, right = [], 110.0, 430.0, 470.0
    low, high, bottom = -46, 40, 62 + 36 * len(rows)

    def place(value: float) -> float:
        return left + (log10(value) - low) / (high - low) * (middle - left)

    for power in (-40, -20, 0, 20, 40):
        x = place(10.0**power)
        text = label(x, bottom + 18, f"1e{power}", "middle faint")
        parts += [line((x, 46), (x, bottom)), text]
    for at, name in ((right, "1"), (RIGHT, "1.25")):
        parts.append(label(at, bottom + 18, name, "middle faint"))
    for row, (name, numbers) in enumerate(rows.items()):
        top = 54 + 36 * row
        first, normal, last = map(
            place, (numbers.smallest, numbers.smallest_normal, numbers.largest)
        )
        parts += [
            label(left - 14, top + 14, name, "end"),
            box(first, top, normal - first, 18, COLOURS[1]),
            box(normal, top, last - normal, 18, COLOURS[0]),
        ]
        if numbers.steps > 64:  # closer than ticks can be drawn
            parts.append(box(right, top, RIGHT - right, 18, COLOURS[2]))
            continue
        for step in range(numbers.steps + 1):
            x = right + step / numbers.steps * (RIGHT - right)
            parts.append(line((x, top), (x, top + 18), COLOURS[2]))
    legend = dict(zip(("subnormal", "normal", "numbers from 1 to 1.25"),
                      (COLOURS[1], COLOURS[0], COLOURS[2]), strict=True))  # fmt: skip
    caption = "; ".join(
        f"{name} from {numbers.smallest:.2g}, normal from {numbers.smallest_normal:.2g}, to "
        f"{numbers.largest:.3g}, {numbers.steps} steps from 1 to 1.25"
        for name, numbers in rows.items()
    )
    return picture(title, bottom + 64, [*parts, *key(legend, bottom + 28)], caption)


def ladder(title: str, places: Mapping[str, str], links: Mapping[str, str]) -> str:
    """Places from far to near with what they hold, and between them links with their rates."""
    parts = []
    for row, (name, size) in enumerate(places.items()):
        top = 46 + 78 * row
        parts += [
            box(150, top, 420, 38, COLOURS[0]),
            label(360, top + 24, f"{name}: {size}", "middle inside"),
        ]
    for row, (name, rate) in enumerate(links.items()):
        top = 84 + 78 * row
        parts += [
            arrow((360, top + 2), (360, top + 38), COLOURS[1]),
            label(380, top + 25, f"{name}: {rate}", "faint"),
        ]
    caption = ", ".join(f"{name} {text}" for name, text in {**places, **links}.items())
    return picture(title, 20 + 78 * len(places), parts, caption)


def stack(title: str, shapes: Mapping[str, tuple[int, int, int]], signs: Sequence[str]) -> str:
    """Batches of matrices as sheets one behind the other: how many, rows, columns."""
    parts, left = [], 30.0
    for place, (name, (count, rows, columns)) in enumerate(shapes.items()):
        sheets, width, height = min(count, 6), max(columns * 4.4, 14), rows * 4.4
        for sheet in reversed(range(sheets)):
            sheet_box = box(left + 8 * sheet, 106 - 8 * sheet, width, height, COLOURS[place])
            parts.append(sheet_box.replace('class=""', 'class="rule"'))
        text = f"{count} of {rows} x {columns}" if count > 1 else f"{rows} x {columns}, for all"
        parts += [label(left, 276, name, ""), label(left, 298, text, "faint")]
        left += max(width + 8 * sheets, LETTER * len(text)) + 20
        if place < len(signs):
            parts.append(label(left, 146, signs[place], ""))
            left += 36
    caption = ", ".join(
        f"{name} {count} x {rows} x {columns}" for name, (count, rows, columns) in shapes.items()
    )
    return picture(title, 316, parts, caption)


def timeline(title: str, bars: Sequence[Bar], said: Callable[[float], str]) -> str:
    """A lane for each stream, time to the right."""
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    names = dict.fromkeys(bar.name for bar in bars)
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    left, first = 120.0, min(bar.begin_s for bar in bars)
    end = max(bar.end_s for bar in bars) - first
    scale, bottom = (RIGHT - left) / end, 56 + 44 * len(lanes)
    parts = [label(left - 12, 66 + 44 * row, lane, "end") for row, lane in enumerate(lanes)]
    for bar in bars:
        width = max((bar.end_s - bar.begin_s) * scale - 1, 1)
        top = 46 + 44 * lanes.index(bar.lane)
        parts.append(box(left + (bar.begin_s - first) * scale, top, width, ROW, colours[bar.name]))
    parts += [
        label(left, bottom + 8, "0", "faint"),
        label(RIGHT, bottom + 8, said(end), "end faint"),
    ]
    caption = ", ".join(
        f"{bar.name} on {bar.lane} from {said(bar.begin_s - first)} to {said(bar.end_s - first)}"
        for bar in bars
    )
    return picture(title, bottom + 56, [*parts, *key(colours, bottom + 18)], caption)
