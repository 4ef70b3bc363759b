"""Memory at the peak, or at any other tick: by line, by module and by storage."""

from dataclasses import replace

from torchtally.ledger import Ledger, Line, Path
from torchtally.memory import Category
from torchtally.table import Cell, Column, Table
from torchtally.trace import TensorSpec
from torchtally.units import Unit
from torchtally.views.holdings import Holding, bytes_of, group_holdings, holdings, owner_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.modules import MODULES, fold, module_texts
from torchtally.views.modules import TEXTS as MODULE_TEXTS
from torchtally.views.moments import moment_at, step_name
from torchtally.views.view import view

BYTES = Column("bytes", "at peak", Unit.BYTES)
SHARE = Column("bytes_share", "share", Unit.FRACTION)
CATEGORY = Column("category", "held for", Unit.NAME)


@view("peak-line", "at the peak, by the line that allocated it", "memory")
def peak_lines(ledger: Ledger) -> Table:
    """Bytes alive at the peak, by the line that allocated them and by category."""
    return lines_at(ledger, ledger.memory.peak_tick)


def lines_at(ledger: Ledger, tick: int) -> Table:
    """Bytes alive at a tick, by the line that allocated them and by category."""
    alive, alive_bytes = holdings(ledger, tick), ledger.memory.timeline.at(tick)
    root = root_of({holding.line for holding in alive})

    def key(holding: Holding) -> tuple[Line | None, Category]:
        return holding.line, holding.category

    rows = tuple(
        (title_of(category), *_figures(part, alive_bytes), len(part), *line_texts(line, root))
        for (line, category), part in group_holdings(alive, key)
    )
    return Table(
        title=f"Memory {_when(ledger, tick)}, by the line that allocated it",
        columns=(
            CATEGORY,
            _bytes_column(ledger, tick),
            SHARE,
            Column("count", "storages", Unit.COUNT, 1),
            *TEXTS,
        ),
        rows=rows,
        totals=(None, *_figures(alive, alive_bytes), len(alive), None, None),
        note=f"{_note(ledger, tick)}A gradient is allocated by its forward line's backward.",
    )


@view("peak-module", "at the peak, by module", "memory")
def peak_modules(ledger: Ledger) -> Table:
    """Bytes alive at the peak, by module and category."""
    return modules_at(ledger, ledger.memory.peak_tick, is_folded=False)


@view(
    "peak-repeated-module", "at the peak, by module, with h.* for h.0, h.1, ...", subject="memory"
)
def peak_repeated_modules(ledger: Ledger) -> Table:
    """The same, modules whose paths differ in numbers alone (`h.0`, `h.1`) as one row."""
    return modules_at(ledger, ledger.memory.peak_tick, is_folded=True)


def category_of(holding: Holding) -> Category:
    return holding.category


def modules_at(ledger: Ledger, tick: int, *, is_folded: bool) -> Table:
    """Bytes alive at a tick, by module and category; repeated modules as one row where folded."""
    alive, alive_bytes = holdings(ledger, tick), ledger.memory.timeline.at(tick)
    owner = owner_of(ledger)
    held_for = group_holdings(alive, category_of)
    categories = [category for category, part in held_for if bytes_of(part)]

    def key(holding: Holding) -> Path:
        return fold(owner(holding)) if is_folded else owner(holding)

    def by_category(part: list[Holding]) -> list[Cell]:
        size_of = {category: bytes_of(own) for category, own in group_holdings(part, category_of)}
        return [size_of.get(category, 0) for category in categories]

    times = [MODULES] if is_folded else []
    rows = []
    for path, part in group_holdings(alive, key):
        modules: list[Cell] = (
            [len({owner(holding).module for holding in part})] if is_folded else []
        )
        cells = (*_figures(part, alive_bytes), *by_category(part), *modules, *module_texts(path))
        rows.append(cells)
    return Table(
        title=f"Memory {_when(ledger, tick)}, by module{', repeated ones together' * is_folded}",
        columns=(
            _bytes_column(ledger, tick),
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
            *_figures(alive, alive_bytes),
            *by_category(alive),
            *([None] if is_folded else []),
            None,
            None,
        ),
        note=f"{_note(ledger, tick)}Parameters are charged to the module that owns them, the rest "
        "to the module whose forward or backward allocated it; optimizers are outside any module.",
    )


STORAGE_COLUMNS = (
    replace(SHARE, rank=3),
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
    return storages_at(ledger, ledger.memory.peak_tick)


def storages_at(ledger: Ledger, tick: int) -> Table:
    """Every storage that is alive at a tick, largest first."""
    alive, alive_bytes = holdings(ledger, tick), ledger.memory.timeline.at(tick)
    root = root_of({holding.line for holding in alive})

    def row(holding: Holding) -> tuple[Cell, ...]:
        place, source = line_texts(holding.line, root)
        return (
            title_of(holding.category),
            *_figures([holding], alive_bytes),
            step_name(ledger, holding.storage.born),
            tensor_of(holding),
            holding.storage.name or (holding.entry.site.module if holding.entry else "") or place,
            place,
            source,
            holding.storage.born,
            tick - holding.storage.born,
            holding.storage.number,
        )

    return Table(
        title=f"Memory {_when(ledger, tick)}, storage by storage",
        columns=(CATEGORY, _bytes_column(ledger, tick), *STORAGE_COLUMNS),
        rows=tuple(map(row, alive)),
        totals=(None, *_figures(alive, alive_bytes), *[None] * 8),
        note=f"{_note(ledger, tick)}'since' is the training step in which a storage was allocated.",
    )


def tensor_of(holding: Holding) -> str:
    """Dtype and shape of what the making operator put there: "bfloat16[32, 768]"; "" if unknown."""
    entry = holding.entry
    if entry is not None and holding.storage.number in entry.op.outputs:
        spec = entry.call.outputs[entry.op.outputs.index(holding.storage.number)]
        return tensor_text(spec)
    return ""


def tensor_text(spec: TensorSpec) -> str:
    """Dtype and shape: "bfloat16[32, 768]"."""
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def title_of(category: Category) -> str:
    """Title as people write it: "optimizer state"."""
    return category.replace("_", " ").replace("kv ", "KV ")


def _figures(part: list[Holding], alive_bytes: int) -> tuple[int, float]:
    """Bytes, and their share of all that is alive."""
    size = bytes_of(part)
    return size, size / alive_bytes if alive_bytes else 0.0


def _bytes_column(ledger: Ledger, tick: int) -> Column:
    return BYTES if tick == ledger.memory.peak_tick else replace(BYTES, title="bytes")


def _when(ledger: Ledger, tick: int) -> str:
    return "at the peak" if tick == ledger.memory.peak_tick else f"at tick {tick}"


def _note(ledger: Ledger, tick: int) -> str:
    moment = moment_at(ledger, tick)
    if moment is None:
        return ""
    what = "The peak" if tick == ledger.memory.peak_tick else f"Tick {tick}"
    return f"{what} is in {moment}. "
