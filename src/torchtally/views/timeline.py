"""Live memory over the run: the fullest moment of each stretch, by category."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.modules import TEXTS as MODULE_TEXTS
from torchtally.views.modules import module_texts
from torchtally.views.moments import RunMoment, moment_at
from torchtally.views.peak import title_of
from torchtally.views.view import view

STRETCHES = 24
"""Rows, give or take a few."""
BAR_WIDTH = 14
PEAK_MARK = "<"
BAR_ORDER = (
    Category.PARAMETERS,
    Category.OPTIMIZER_STATE,
    Category.BUFFERS,
    Category.WORKSPACES,
    Category.GRADIENTS,
    Category.INPUTS,
    Category.ACTIVATIONS,
    Category.GATHERED_PARAMETERS,
    Category.COMMUNICATION_BUFFERS,
    Category.TEMPORARIES,
    Category.UNKNOWN,
    Category.KV_CACHE,
)
"""What stays comes first, so that what moves is seen to. Their letters differ."""


@view(
    "timeline",
    "over the whole run: the fullest moment of each stretch, by category",
    subject="memory",
)
def timeline(ledger: Ledger) -> Table:
    """Bytes alive over the whole run. A row is the fullest moment of its stretch of the run, so the
    peak is among them; the end of a step is a row unless there are too many steps.
    """
    memory = ledger.memory
    parts = memory.by_category()
    peak_bytes, peak_tick = memory.peak_bytes, memory.peak_tick
    reserved = [reserved for reserved in ledger.trace.reserved if reserved.device == memory.device]
    ticks = [memory.timeline.peak_tick_between(*stretch) for stretch in stretches(ledger)]
    courses = {category: part for category, part in parts.items() if any(map(part.at, ticks))}
    moments = {tick: moment_at(ledger, tick) for tick in ticks}
    root = root_of(moment.line for moment in moments.values() if moment is not None)

    def row(tick: int) -> tuple[Cell, ...]:
        moment = moments[tick]
        at = {category: part.at(tick) for category, part in courses.items()}
        last = bisect_right(reserved, tick, key=lambda reserved: reserved.tick) - 1
        return (
            f"{moment.step} {moment.phase}" if moment is not None else "1",
            memory.timeline.at(tick),
            *([reserved[last].bytes if last >= 0 else 0] if reserved else []),
            bar(at, peak_bytes) + PEAK_MARK * (tick == peak_tick),
            *at.values(),
            *_places(moment, root),
            tick,
        )

    largest_first = sorted(courses, key=lambda category: -courses[category].peak_bytes)
    columns = (
        Column("moment", "step, phase", Unit.NAME),
        Column("bytes", "total", Unit.BYTES),
        *([Column("reserved_bytes", "reserved", Unit.BYTES, rank=1)] if reserved else []),
        Column("bar", "by category", Unit.BAR),
        *(
            Column(
                f"{category}_bytes",
                title_of(category),
                Unit.BYTES,
                rank=2 + largest_first.index(category),
            )
            for category in courses
        ),
        TEXTS[0],
        Column(MODULE_TEXTS[0].name, "module", Unit.PLACE, rank=2),
        Column("tick", "tick", Unit.COUNT, rank=20),
    )
    legend = ", ".join(
        f"{initial(category)} {title_of(category)}" for category in BAR_ORDER if category in courses
    )
    return Table(
        title="Memory over the run",
        columns=columns,
        rows=tuple(map(row, ticks)) if courses else (),
        note=f"A row is the fullest moment of its stretch of the run, with the memory in use while "
        f"its line runs. {PEAK_MARK} marks the peak. {legend}."
        if courses
        else "Nothing was put on the device.",
    )


def stretches(ledger: Ledger) -> list[tuple[int, int]]:
    """The run's ticks in about STRETCHES parts [first, end), none empty. Each is within one step,
    and the end of a step is one by itself; where there are too many steps for that, neither is so.
    """
    end = end_of(ledger)
    cuts = {end + last for end in ledger.trace.step_ends for last in (-1, 0)}
    ends = [*sorted(cut for cut in cuts if 0 < cut < end), end]
    if len(ends) > STRETCHES:
        return list(equal_stretches(0, end, STRETCHES))
    spare = STRETCHES - len(ends)
    return [
        stretch
        for first, last in pairwise([0, *ends])
        for stretch in equal_stretches(first, last, 1 + round(spare * (last - first) / end))
    ]


def end_of(ledger: Ledger) -> int:
    """One past the last tick at which an operator ran or a storage was born."""
    born = max((storage.born for storage in ledger.memory.storages), default=0)
    return max(ledger.trace.end, born + 1)


def equal_stretches(first: int, end: int, parts: int) -> Iterator[tuple[int, int]]:
    """[first, end) in so many parts, or fewer where there are not as many ticks."""
    parts = min(parts, end - first)
    cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
    return pairwise(cuts)


def initial(category: Category) -> str:
    """Its letter in a bar; gathered parameters are small ones."""
    return "p" if category is Category.GATHERED_PARAMETERS else category[0].upper()


def bar(at: dict[Category, int], peak_bytes: int) -> str:
    """Bytes by category as letters, BAR_WIDTH of them at the peak: "PPPPOOOOAAAAAA".

    Where one category's letters end is rounded, so the length is the total's.
    """
    parts = ((initial(category), at.get(category, 0)) for category in BAR_ORDER)
    return letters_of(parts, peak_bytes, BAR_WIDTH)


def letters_of(parts: Iterable[tuple[str, float]], whole: float, width: int) -> str:
    """Quantities as letters, `width` of them for the whole, rounded so that the sum is right."""
    if not whole:
        return ""
    text, total = "", 0.0
    for letter, part in parts:
        total += part
        text += letter * (round(width * total / whole) - len(text))
    return text


def _places(moment: RunMoment | None, root: str) -> Sequence[Cell]:
    if moment is None:
        return (line_texts(None, root)[0], "")
    return (line_texts(moment.line, root)[0], module_texts(moment.module)[0])
