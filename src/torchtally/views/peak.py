"""Memory at the peak: by line, by module and by storage."""

from dataclasses import replace

from torchtally.ledger import Ledger, Line, Path
from torchtally.memory import Category
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit
from torchtally.views.holdings import Holding, bytes_of, grouped, holdings, owner_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.modules import MODULES, folded, module_texts
from torchtally.views.modules import TEXTS as MODULE_TEXTS
from torchtally.views.moments import moment_at, step_of
from torchtally.views.view import view

BYTES = Column("bytes", "at peak", Unit.BYTES)
SHARE = Column("bytes_share", "share", Unit.FRACTION)
CATEGORY = Column("category", "held for", Unit.NAME)


@view("peak-line", "at the peak, by the line that allocated it", "memory")
def peak_lines(ledger: Ledger) -> Table:
    """Bytes alive at the peak, by the line that allocated them and by category."""
    at_peak = _at_peak(ledger)
    root = root_of(holding.line for holding in at_peak)

    def key(holding: Holding) -> tuple[Line | None, Category]:
        return holding.line, holding.category

    rows = tuple(
        (title_of(category), *_figures(ledger, part), len(part), *line_texts(line, root))
        for (line, category), part in grouped(at_peak, key)
    )
    return Table(
        title="Memory at the peak, by the line that allocated it",
        columns=(CATEGORY, BYTES, SHARE, Column("count", "storages", Unit.COUNT, 1), *TEXTS),
        rows=rows,
        totals=(None, *_figures(ledger, at_peak), len(at_peak), None, None),
        note=f"{_peak_note(ledger)}A gradient is allocated by its forward line's backward.",
    )


@view("peak-module", "at the peak, by module", "memory")
def peak_modules(ledger: Ledger) -> Table:
    """Bytes alive at the peak, by module and category."""
    return _module_table(ledger, "Memory at the peak, by module", is_folded=False)


@view(
    "peak-repeated-module", "at the peak, by module, with h.* for h.0, h.1, ...", subject="memory"
)
def peak_repeated_modules(ledger: Ledger) -> Table:
    """The same, modules whose paths differ in numbers alone (`h.0`, `h.1`) as one row."""
    title = "Memory at the peak, by module, repeated ones together"
    return _module_table(ledger, title, is_folded=True)


def _module_table(ledger: Ledger, title: str, *, is_folded: bool) -> Table:
    at_peak = _at_peak(ledger)
    owner = owner_of(ledger)
    largest_first = sorted(ledger.memory.at_peak, key=lambda pair: -pair[1])
    categories = [category for category, size in largest_first if size]

    def key(holding: Holding) -> Path:
        return folded(owner(holding)) if is_folded else owner(holding)

    def by_category(part: list[Holding]) -> list[Cell]:
        return [
            bytes_of(holding for holding in part if holding.category is category)
            for category in categories
        ]

    times = [MODULES] if is_folded else []
    rows = []
    for path, part in grouped(at_peak, key):
        modules: list[Cell] = (
            [len({owner(holding).module for holding in part})] if is_folded else []
        )
        cells = (*_figures(ledger, part), *by_category(part), *modules, *module_texts(path))
        rows.append(cells)
    return Table(
        title=title,
        columns=(
            BYTES,
            SHARE,
            *(
                Column(f"{category}_bytes", title_of(category), Unit.BYTES, rank)
                for rank, category in enumerate(categories, start=1)
            ),
            *times,
            *MODULE_TEXTS,
        ),
        rows=tuple(rows),
        totals=(
            *_figures(ledger, at_peak),
            *by_category(at_peak),
            *([None] if is_folded else []),
            None,
            None,
        ),
        note=f"{_peak_note(ledger)}Parameters are charged to the module that owns them, the rest "
        "to the module whose forward or backward allocated it; optimizers are outside any module.",
    )


STORAGE_COLUMNS = (
    CATEGORY,
    BYTES,
    Column("bytes_share", "share", Unit.FRACTION, rank=3),
    Column("since", "since", Unit.NAME),
    Column("tensor", "tensor", Unit.TEXT),
    Column("owner", "name or module", Unit.PLACE),
    replace(TEXTS[0], rank=1),
    replace(TEXTS[1], rank=2),
    Column("tick", "tick", Unit.COUNT, rank=5),
    Column("age_ticks", "age in ticks", Unit.COUNT, rank=5),
    Column("number", "storage", Unit.COUNT, rank=4),
)


@view("peak-storage", "every storage that is alive at the peak", "memory")
def peak_storages(ledger: Ledger) -> Table:
    """Every storage that is alive at the peak, largest first."""
    at_peak = _at_peak(ledger)
    root = root_of(holding.line for holding in at_peak)
    tick = ledger.memory.peak_tick

    def row(holding: Holding) -> tuple[Cell, ...]:
        place, source = line_texts(holding.line, root)
        return (
            title_of(holding.category),
            *_figures(ledger, [holding]),
            f"step {step_of(ledger, holding.storage.born)}",
            tensor_of(holding),
            holding.storage.name or (holding.entry.site.module if holding.entry else "") or place,
            place,
            source,
            holding.storage.born,
            tick - holding.storage.born,
            holding.storage.number,
        )

    return Table(
        title="Memory at the peak, storage by storage",
        columns=STORAGE_COLUMNS,
        rows=tuple(map(row, at_peak)),
        totals=(None, *_figures(ledger, at_peak), *[None] * 8),
        note=f"{_peak_note(ledger)}'since' is the training step in which a storage was allocated.",
    )


def tensor_of(holding: Holding) -> str:
    """Dtype and shape of what the making operator put there: "bfloat16[32, 768]"; "" if unknown."""
    entry = holding.entry
    if entry is not None and holding.storage.number in entry.op.outputs:
        spec = entry.call.outputs[entry.op.outputs.index(holding.storage.number)]
        return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"
    return ""


def title_of(category: Category) -> str:
    """As people write it: "optimizer state"."""
    return category.replace("_", " ")


def _at_peak(ledger: Ledger) -> list[Holding]:
    return holdings(ledger, ledger.memory.peak_tick)


def _figures(ledger: Ledger, part: list[Holding]) -> tuple[int, float]:
    """Bytes, and their share of the peak."""
    size, peak = bytes_of(part), ledger.memory.peak_bytes
    return size, size / peak if peak else 0.0


def _peak_note(ledger: Ledger) -> str:
    moment = moment_at(ledger, ledger.memory.peak_tick)
    return f"The peak is in {moment}. " if moment is not None else ""
