"""Stacks as a flame graph: a picture without a script, whose names and amounts are tooltips.

The model stands at the bottom, modules above the module they are in, then lines, then operators. A
box is as wide as its part of the whole; what stands beside each other is in order of appearance.
Modules whose paths differ in numbers alone (blocks.0, blocks.1) are one box, since without a script
nothing can be zoomed.
"""

import html
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchtally.ledger import Ledger
from torchtally.progress import printable
from torchtally.report.exports import Exported, Wanted
from torchtally.report.style import style
from torchtally.trace import Phase
from torchtally.units import Unit, format_bytes, format_flops, format_fraction, format_seconds
from torchtally.views.stacks import NS, Level, LevelKind, StackTotals, stacks

SUMMARY = "stacks as a picture (SVG), of --of QUANTITY, for a browser or a document"
SUFFIX = ".svg"
IS_OF_A_QUANTITY = True

WIDTH = 1200
MARGIN = 10
ROW = 18
HEADER = 64
LEAST_WIDTH = 0.3
"""In pixels at full size; what is narrower is not drawn."""
LETTER = 6.65
"""Of a monospaced font of 11 px."""
FORMATS = {Unit.FLOPS: format_flops, Unit.BYTES: format_bytes}


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One picture. Raises UsageError for an unknown quantity, and for unknown times."""
    totals = stacks(ledger, wanted.quantity or "time")
    return Exported({"": svg(totals, ledger)}, (totals.missing,) if totals.missing else ())


@dataclass(slots=True)
class FlameBox:
    """A level with all above it."""

    level: Level
    amount: int = 0
    inner: "dict[Level, FlameBox]" = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    """The names of the levels that it is of: of repeated modules several."""

    @property
    def height(self) -> int:
        """Height in rows, its own among them."""
        return 1 + max((box.height for box in self.inner.values()), default=0)


def tree(totals: StackTotals) -> FlameBox:
    """All stacks as one box, which is of the whole."""
    root = FlameBox(Level(LevelKind.MODULE, "all"))
    for levels, amount in totals.merge().items():
        box = root
        box.amount += amount
        for level in levels:
            together = level.without_numbers()
            box = box.inner.setdefault(together, FlameBox(together))
            box.amount += amount
            box.members.add(level.name)
    return root


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box in the picture, in pixels."""

    box: FlameBox
    x: float
    width: float
    row: int
    """From the bottom."""


def place_boxes(root: FlameBox, width: float) -> Iterator[PlacedBox]:
    """All boxes that are wide enough to be seen, each before those above it."""
    waiting = [PlacedBox(root, 0.0, width, 0)]
    while waiting:
        here = waiting.pop()
        yield here
        before = 0
        for box in here.box.inner.values():
            x = here.x + width * before / root.amount
            before += box.amount
            if (wide := width * box.amount / root.amount) >= LEAST_WIDTH:
                waiting.append(PlacedBox(box, x, wide, here.row + 1))


def svg(totals: StackTotals, ledger: Ledger) -> str:
    """The picture as text."""
    root = tree(totals)
    boxes = list(place_boxes(root, WIDTH - 2 * MARGIN)) if root.amount else []
    bottom = HEADER + ROW * root.height
    height = bottom + ROW + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        "<!-- torchtally -->",
        f"<style>{style('flamegraph')}</style>",
        *header(totals, ledger),
        *(box_svg(each, totals, bottom) for each in boxes),
        label(MARGIN, bottom + ROW, note(totals, root, boxes), "faint"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def header(totals: StackTotals, ledger: Ledger) -> Iterator[str]:
    """What it is of, and what the colours are."""
    title = f"{totals.title}: {amount_text(totals.total, totals.unit)}"
    yield f"<title>{escape(title)}, {escape(ledger.trace.script)}</title>"
    yield label(MARGIN, 20, title, "title")
    how = (
        ""
        if totals.unit is not Unit.SECONDS
        else "measured, "
        if ledger.is_measured
        else ("predicted, ")
    )
    rank = f"rank {ledger.trace.world.rank}, " if ledger.trace.world.size > 1 else ""
    about = f"{how}{ledger.trace.script} on {rank}{ledger.trace.chip}, {totals.period}"
    yield label(MARGIN, 38, cut(about, WIDTH - 2 * MARGIN), "faint")
    phases = {level.phase for levels, _ in totals.rows for level in levels if level.phase}
    kinds = [str(LevelKind.MODULE), str(LevelKind.LINE)]
    kinds += [str(phase) for phase in Phase if phase in phases] or [str(LevelKind.OPERATOR)]
    x = MARGIN
    for kind in kinds:
        yield f'<rect class="{kind}" x="{x}" y="47" width="10" height="10"/>'
        yield label(x + 14, 56, kind, "faint")
        x += 30 + round(LETTER * len(kind))


def box_svg(each: PlacedBox, totals: StackTotals, bottom: int) -> str:
    """A box with its tooltip, and its name as far as there is room."""
    level, amount = each.box.level, each.box.amount
    share = format_fraction(amount / totals.total)
    several = f", {len(each.box.members)} {level.kind}s" if len(each.box.members) > 1 else ""
    tip = f"{level.name}{several}\n{amount_text(amount, totals.unit)}, {share} of all"
    x, y = MARGIN + each.x, bottom - ROW * (each.row + 1)
    name = cut(short_name(level), each.width - 6)
    text = f'<text class="name" x="{x + 3:.1f}" y="{y + 13}">{escape(name)}</text>' if name else ""
    return (
        f'<g><title>{escape(tip)}</title><rect class="{level.phase or level.kind}" x="{x:.2f}" '
        f'y="{y}" width="{each.width:.2f}" height="{ROW}" rx="1"/>{text}</g>'
    )


def short_name(level: Level) -> str:
    """What is not said by the boxes below and by the colour: "up: Linear", "51  x = ...", "mm"."""
    if level.kind is LevelKind.MODULE:
        path, colon, module_class = level.name.partition(": ")
        names = path.split(".")
        return ".".join(names[-2:] if names[-1] == "*" else names[-1:]) + colon + module_class
    if level.line:
        return f"{level.line}{level.name.partition(f':{level.line}')[2]}"
    if level.phase is not None:
        return level.name.rpartition(" (")[0].partition(".")[2] or level.name
    return level.name


def note(totals: StackTotals, root: FlameBox, boxes: list[PlacedBox]) -> str:
    """Note on what is not drawn."""
    left_out = count(root) - len(boxes)
    narrow = f"{left_out} boxes narrower than {LEAST_WIDTH} px are not drawn. " if left_out else ""
    return f"{narrow}{totals.missing}" if totals.total else "Nothing of it in this period."


def count(box: FlameBox) -> int:
    return 1 + sum(map(count, box.inner.values()))


def amount_text(amount: int, unit: Unit) -> str:
    return format_seconds(amount / NS) if unit is Unit.SECONDS else FORMATS[unit](amount)


def cut(name: str, width: float) -> str:
    """Name cut to what fits; "" where that is not worth reading."""
    letters = int(width / LETTER)
    if len(name) <= letters:
        return name
    return f"{name[: letters - 1]}…" if letters >= 4 else ""


def label(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y}">{escape(text)}</text>'


def escape(text: str) -> str:
    """Text as XML has it: without the characters that it cannot have."""
    return html.escape("\n".join(map(printable, text.split("\n"))))
