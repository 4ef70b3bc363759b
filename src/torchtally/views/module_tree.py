"""The modules as a tree: each with all modules inside it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtally.ledger import Ledger, Path, Total
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit
from torchtally.views.columns import OF_TREE, ONLY_WHERE_ANY, SECONDS, part_of
from torchtally.views.holdings import bytes_of, group_holdings, holdings, owner_of
from torchtally.views.modules import OUTSIDE, module_texts, with_children

OWN_SECONDS = Column("own_seconds", "its own", Unit.SECONDS, rank=5)
SECONDS_SHARE = Column("seconds_share", "of time", Unit.FRACTION, rank=2)
PEAK_BYTES = Column("peak_bytes", "at peak", Unit.BYTES, rank=3)
TEXTS = (Column("module", "module", Unit.TEXT), Column("class", "class", Unit.TEXT, rank=1))
INDENT = "  "


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module's place in the tree."""

    path: Path
    level: int
    """How many rows of modules around it stand above it."""
    is_leaf: bool

    def holds(self, path: Path) -> bool:
        """Whether what belongs to a module belongs to this one or to one inside it."""
        if self.path == OUTSIDE or path == OUTSIDE:
            return path == self.path
        name = self.path.module
        return not name or path.module == name or path.module.startswith(f"{name}.")


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """A table of modules, and for each of its rows where it stands."""

    table: Table
    rows: tuple[ModuleRow, ...]


def module_tree(ledger: Ledger) -> ModuleTree:
    """Every module, below the one that holds it; numbers are with all modules inside it."""
    own = ledger.by_module()
    whole = with_children(own)
    rows = tuple(_rows(whole))
    held = _held_at_peak(ledger, rows)
    figures = [each for each in OF_TREE if each not in ONLY_WHERE_ANY or each.of(ledger.total)]
    timed = (SECONDS.column, SECONDS_SHARE, OWN_SECONDS) if ledger.is_timed else ()

    def numbers(total: Total, own_s: float | None) -> tuple[Cell, ...]:
        share = part_of(total.seconds, ledger.total.seconds)
        return (
            *((total.seconds, share, own_s) if ledger.is_timed else ()),
            *(each.of(total) for each in figures),
        )

    def cells(row: ModuleRow, peak_bytes: int) -> tuple[Cell, ...]:
        name, class_name = module_texts(row.path)
        last = name.rpartition(".")[2] if row.level else name
        own_s = own.get(row.path, Total()).seconds
        return (*numbers(whole[row.path], own_s), peak_bytes, INDENT * row.level + last, class_name)

    table = Table(
        title="Modules, each with all inside it",
        columns=(*timed, *(each.column for each in figures), PEAK_BYTES, *TEXTS),
        rows=tuple(cells(row, peak_bytes) for row, peak_bytes in zip(rows, held, strict=True)),
        totals=(*numbers(ledger.total, None), ledger.memory.peak_bytes, None, None),
    )
    return ModuleTree(table, rows)


def _rows(whole: dict[Path, Total]) -> Iterator[ModuleRow]:
    """The model first, modules in the order of their names and numbers, the rest last."""
    models = [path for path in whole if not path.module and path != OUTSIDE]
    children: dict[str, list[Path]] = {}
    for path in whole:
        if path.module:
            children.setdefault(path.module.rpartition(".")[0], []).append(path)

    def below(holder: str, level: int) -> Iterator[ModuleRow]:
        for path in sorted(children.get(holder, ()), key=_order):
            yield ModuleRow(path, level, path.module not in children)
            yield from below(path.module, level + 1)

    for model in models:
        yield ModuleRow(model, 0, len(models) > 1 or "" not in children)
    yield from below("", int(len(models) == 1))
    if OUTSIDE in whole:
        yield ModuleRow(OUTSIDE, 0, True)


def _order(path: Path) -> list[tuple[int, str]]:
    """Blocks by their numbers: h.2 before h.10."""
    last = path.module.rpartition(".")[2]
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", last)
    ]


def _held_at_peak(ledger: Ledger, rows: tuple[ModuleRow, ...]) -> list[int]:
    """Bytes alive at the peak of each row's modules."""
    owner = owner_of(ledger)
    alive = holdings(ledger, ledger.memory.peak_tick)
    of_path = {path: bytes_of(part) for path, part in group_holdings(alive, owner)}
    held: dict[str, int] = {}
    for path, size in of_path.items():
        if path != OUTSIDE:
            name = path.module
            for around in {"", name, *(name[: at.start()] for at in re.finditer(r"\.", name))}:
                held[around] = held.get(around, 0) + size
    return [
        of_path.get(OUTSIDE, 0) if row.path == OUTSIDE else held.get(row.path.module, 0)
        for row in rows
    ]
