"""Costs by module: each one's own, and with all modules inside it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchtally.ledger import Entry, Ledger, Path, Total, module_of, once_per_site
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit
from torchtally.views.columns import OF_MODULES, cost_table
from torchtally.views.view import view

OUTSIDE = Path("", "")
WITH_CHILDREN = Column("flops_with_children", "with inner", Unit.FLOPS)
TIMED_WITH_CHILDREN = (
    Column("seconds_with_children", "in all", Unit.SECONDS),
    replace(WITH_CHILDREN, rank=1),
)
MODULES = Column("module_count", "times", Unit.COUNT)
"""How many modules a row is of."""
NOTE = "A module's own operators; 'with inner' adds the modules inside it."
TIMED_NOTE = (
    "A module's own operators; 'in all' is its time and 'with inner' its FLOPs with the modules "
    "inside it."
)
TEXTS = (Column("module", "module", Unit.PLACE), Column("class", "class", Unit.TEXT))


@view("module", "every module by its path")
def modules(ledger: Ledger) -> Table:
    """Every module by its path. All columns are the module's own and sum to the total, except
    "with inner", which adds the modules inside it.
    """
    own = ledger.by_module()
    whole = with_children(own)
    for path in whole:
        own.setdefault(path, Total())
    is_timed = ledger.roofline is not None
    inner = TIMED_WITH_CHILDREN if is_timed else (WITH_CHILDREN,)

    def cells(path: Path) -> tuple[Cell, ...]:
        total = whole[path]
        return (
            *((total.seconds, total.flops) if is_timed else (total.flops,)),
            *module_texts(path),
        )

    return cost_table(
        "By module",
        OF_MODULES,
        (*inner, *TEXTS),
        [(total, cells(path)) for path, total in own.items()],
        ledger,
        note=TIMED_NOTE if is_timed else NOTE,
    )


@view("repeated-module", "modules by their path, with h.* for h.0, h.1, ...")
def repeated_modules(ledger: Ledger) -> Table:
    """Modules whose paths differ in numbers alone (`h.0.mlp`, `h.1.mlp`) as one row."""
    modules_of_pattern: dict[Path, set[str]] = {}

    def pattern_of(entry: Entry) -> Path:
        path = module_of(entry)
        pattern = fold(path)
        modules_of_pattern.setdefault(pattern, set()).add(path.module)
        return pattern

    totals = ledger.sums(once_per_site(pattern_of))
    rows = [
        (total, (len(modules_of_pattern[path]), *module_texts(path)))
        for path, total in totals.items()
    ]
    texts = (MODULES, *TEXTS)
    return cost_table("By module, repeated ones together", OF_MODULES, texts, rows, ledger)


def fold(path: Path) -> Path:
    """The path with its numbers as stars: `h.*.mlp` for `h.3.mlp`."""
    return Path(re.sub(r"(?<![^.])\d+(?![^.])", "*", path.module), path.module_class)


def module_texts(path: Path) -> tuple[str, str]:
    """Path and class as a reader knows them."""
    if path == OUTSIDE:
        return "(outside any module)", ""
    return path.module or "(the model)", path.module_class


def with_children(own: dict[Path, Total]) -> dict[Path, Total]:
    """Each module's total with those of the modules inside it, modules that only hold others
    included. A nameless module (the model itself) holds all others where it is the only one.
    """
    named = {path.module: path for path in own if path.module}
    models = [path for path in own if not path.module and path != OUTSIDE]
    whole: dict[Path, Total] = dict.fromkeys(own, Total())
    for path, total in own.items():
        whole[path] += total
        for holder in _holders(path.module):
            holder_path = named.get(holder, Path(holder, ""))
            whole[holder_path] = whole.get(holder_path, Total()) + total
        if path.module and len(models) == 1:
            whole[models[0]] += total
    return whole


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Modules by their paths, numbers as numbers: "h.2" before "h.10"."""
    return sorted(paths, key=lambda path: list(map(_part_order, path.module.split("."))))


def _part_order(part: str) -> tuple[int, int, str]:
    return (1, int(part), "") if part.isdecimal() and len(part) < 10 else (0, 0, part)


def _holders(module: str) -> Iterator[str]:
    """The paths of the modules around one: "h", "h.3" around "h.3.mlp"."""
    parts = module.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))
