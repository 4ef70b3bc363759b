"""Activations: what the forward pass leaves for the backward pass, by line or module."""

from torchtally.ledger import Ledger, Path
from torchtally.memory import Category
from torchtally.table import Column, Table
from torchtally.units import Unit
from torchtally.views.holdings import Holding, bytes_of, group_holdings, holdings, owner_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.modules import MODULES, fold, module_texts
from torchtally.views.modules import TEXTS as MODULE_TEXTS
from torchtally.views.moments import moment_at
from torchtally.views.view import view

FIGURES = (
    Column("bytes", "held", Unit.BYTES),
    Column("bytes_share", "share", Unit.FRACTION),
    Column("count", "storages", Unit.COUNT),
)


@view("activations-module", "saved for the backward pass, by module", "memory")
def activation_modules(ledger: Ledger) -> Table:
    """Activations by the module that made them, repeated modules as one row."""
    tick = fullest_tick(ledger)
    saved = activations(ledger, tick)
    owner = owner_of(ledger)

    def key(holding: Holding) -> Path:
        return fold(owner(holding))

    rows = tuple(
        (
            *_figures(part, saved),
            len({owner(holding).module for holding in part}),
            *module_texts(path),
        )
        for path, part in group_holdings(saved, key)
    )
    return Table(
        title="Activations, by module, repeated ones together",
        columns=(*FIGURES, MODULES, *MODULE_TEXTS),
        rows=rows,
        totals=(*_figures(saved, saved), None, None, None),
        note=_note(ledger, tick, saved),
    )


@view("activations-line", "saved for the backward pass, by the line that computed it", "memory")
def activation_lines(ledger: Ledger) -> Table:
    """Activations by the line that made them."""
    tick = fullest_tick(ledger)
    saved = activations(ledger, tick)
    root = root_of(activation.line for activation in saved)
    rows = tuple(
        (*_figures(part, saved), *line_texts(line, root))
        for line, part in group_holdings(saved, lambda activation: activation.line)
    )
    return Table(
        title="Activations, by the line that computed them",
        columns=(*FIGURES, *TEXTS),
        rows=rows,
        totals=(*_figures(saved, saved), None, None),
        note=_note(ledger, tick, saved),
    )


def fullest_tick(ledger: Ledger) -> int:
    """The first tick of the reported period with most bytes of activations."""
    first, end = ledger.reported_period.first, ledger.reported_period.end
    course = ledger.memory.by_category()[Category.ACTIVATIONS]
    return course.peak_tick_between(first, max(end, first + 1))


def activations(ledger: Ledger, tick: int) -> list[Holding]:
    """Activations alive at a tick, largest first."""
    return [
        holding for holding in holdings(ledger, tick) if holding.category is Category.ACTIVATIONS
    ]


def _figures(part: list[Holding], saved: list[Holding]) -> tuple[int, float, int]:
    size, whole = bytes_of(part), bytes_of(saved)
    return size, size / whole if whole else 0.0, len(part)


def _note(ledger: Ledger, tick: int, saved: list[Holding]) -> str:
    if not saved:
        return "No activations: no backward pass read a result of the forward pass."
    is_peak = tick == ledger.memory.peak_tick
    return (
        f"At the peak of activations in {ledger.period}: "
        f"{moment_at(ledger, tick)}{', the peak of the run' if is_peak else ''}. A tensor that "
        "several operators save is counted once, at the line that computed it."
    )
