"""Table of how a run differs from one on the device, and what its totals leave out."""

from collections.abc import Iterator

from torchtally.ledger import Ledger
from torchtally.table import Cell, Column, Table
from torchtally.trace import Frame, Use
from torchtally.units import Unit
from torchtally.views.lines import place_of, root_of
from torchtally.views.script_work import script_work

COLUMNS = (
    Column("kind", "what", Unit.NAME),
    Column("count", "times", Unit.COUNT),
    Column("detail", "of what", Unit.TEXT),
    Column("line", "line", Unit.LINE),
    Column("source", "source", Unit.TEXT, rank=1),
)


def notes(ledger: Ledger) -> Table:
    """Operators that are in no total, placeholders (conditions first), differences, and what the
    script did outside of its GPU.
    """
    rows = tuple(_rows(ledger))
    return Table(
        title="What is not counted, and how this run differs from one on a real device",
        columns=COLUMNS,
        rows=rows,
        note="" if rows else "Every operator has a rule, and no value was replaced.",
    )


def _rows(ledger: Ledger) -> Iterator[tuple[Cell, ...]]:
    trace, root = ledger.trace, root_of(ledger.by_line())

    def at(frame: Frame | None) -> tuple[Cell, Cell]:
        return ("", "") if frame is None else (place_of(frame.file, frame.line, root), frame.text)

    for uncounted in ledger.coverage.uncounted:
        yield "not counted", uncounted.count, f"{uncounted.op}: {uncounted.reason}", "", ""
    for untimed in ledger.untimed:
        yield "time unknown", untimed.count, f"{untimed.op}: {untimed.reason}", "", ""
    uses = list(Use)
    for each in sorted(trace.placeholders, key=lambda each: (uses.index(each.use), -each.count)):
        kind = f"placeholder, {each.use}"
        verb = "" if each.is_assumption or each.use is Use.EXIT else "gave "
        yield kind, each.count, f"{each.op} {verb}{each.given}", *at(each.frame)
    for note in trace.notes:
        yield "difference", note.count, note.text, "", ""
    for loading in trace.loading:
        workers = {0: "without workers", 1: "with a worker"}
        how = workers.get(loading.workers, f"with {loading.workers} workers")
        yield "time not included", 1, f"DataLoader {how}", *at(loading.frame)
    work = script_work(ledger)
    if work is not None:
        yield "time not included", 1, "the script's own code between operators", *at(work.frame)
    for effect in trace.effects:
        yield str(effect.kind), effect.count, effect.name, *at(effect.frame)
