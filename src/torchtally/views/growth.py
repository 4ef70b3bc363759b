"""Growth from step to step: what a training loop comes to hold more and more of."""

from collections.abc import Sequence

from torchtally.chips import find_chip
from torchtally.diagnosis.growth import NOTHING, BytesAndCount, HeldByLine, held_at_end
from torchtally.ledger import Ledger, Line
from torchtally.table import Cell, Column, Number, Prose, Table
from torchtally.units import Unit
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.view import view

FIRST_STEADY_STEP = 2
"""The first step also allocates what is allocated once: optimizer state, workspaces."""
GROWTH = Column("growth_bytes", "growth", Unit.BYTES)
PER_STEP = Column("growth_per_step_bytes", "per step", Unit.BYTES)
STORAGES = Column("storages", "storages", Unit.COUNT, rank=1)


@view("growth", "alive at the end of a step but not a step before: leaks", "memory")
def growth(ledger: Ledger) -> Table:
    """Bytes alive at the end of the last completed step, and how many more that is than at the end
    of the second (of the first, where only two were completed), by the line that allocated them.

    The end of a step is its last operator: what the optimizer's step still holds is in it, in every
    step alike. Lines that hold as much as before are one row.
    """
    steps = len(ledger.trace.step_ends)
    before = min(FIRST_STEADY_STEP, steps - 1)
    held_before, held_after = held_at_end(ledger, before), held_at_end(ledger, steps)
    lines = sorted(
        held_before.keys() | held_after.keys(),
        key=lambda line: (_change(held_before, held_after, line)[0], str(line)),
        reverse=True,
    )
    changed = [line for line in lines if any(_change(held_before, held_after, line))]
    same = [line for line in lines if line not in set(changed)]
    root = root_of(changed)
    elapsed = steps - before

    def row(part: Sequence[Line | None], texts: Sequence[Cell]) -> tuple[Cell, ...]:
        older = sum(held_before.get(line, NOTHING)[0] for line in part)
        newer = sum(held_after.get(line, NOTHING)[0] for line in part)
        if before < 1:
            return (newer, sum(held_after.get(line, NOTHING)[1] for line in part), *texts)
        more = sum(_change(held_before, held_after, line)[1] for line in part)
        per_step = [round((newer - older) / elapsed)] if elapsed > 1 else []
        return (older, newer, newer - older, *per_step, more, *texts)

    columns = [Column("bytes_after", f"end of step {steps}", Unit.BYTES), STORAGES, *TEXTS]
    if before >= 1:
        columns = [
            Column("bytes_before", f"end of step {before}", Unit.BYTES, rank=2),
            columns[0],
            GROWTH,
            *([PER_STEP] if elapsed > 1 else []),
            Column("storages", "more storages", Unit.COUNT, rank=1),
            *TEXTS,
        ]
    rows = [row([line], line_texts(line, root)) for line in changed]
    if same:
        as_before = f"({len(same)} line{'s' * (len(same) > 1)} as before)"
        rows.append(row(same, (as_before, "")))
    totals = tuple(
        None if column is PER_STEP else cell
        for column, cell in zip(columns, row(lines, (None, None)), strict=True)
    )
    grown = sum(_change(held_before, held_after, line)[0] for line in lines)
    return Table(
        title="Growth from step to step, by the line that allocated it",
        columns=tuple(columns),
        rows=tuple(rows) if steps else (),
        totals=totals if steps else (),
        note=_note(ledger, before, grown),
    )


def _change(before: HeldByLine, after: HeldByLine, line: Line | None) -> BytesAndCount:
    older, newer = before.get(line, NOTHING), after.get(line, NOTHING)
    return newer[0] - older[0], newer[1] - older[1]


def _note(ledger: Ledger, before: int, grown: int) -> Prose:
    steps = len(ledger.trace.step_ends)
    if steps < 1:
        return "No training step was completed: there is nothing to compare."
    if steps <= FIRST_STEADY_STEP:
        ran = "1 step was" if steps == 1 else f"{steps} steps were"
        return (
            f"Only {ran} traced, and the first allocates what is kept from then on (optimizer "
            "state, for example), which looks like a leak. Use `tally run --steps 3`."
        )
    span = f"from the end of step {before} to the end of step {steps}"
    if grown <= 0:
        return f"No leak: memory does not grow {span}."
    hint = (
        f"Memory grows {span}. A line that grows with every step keeps tensors of past steps "
        "alive: in a list, or in a sum without .item() or .detach()."
    )
    steps_left = _steps_left(ledger, grown / (steps - before))
    if steps_left is None:
        return hint
    left = Number(steps_left, Unit.STEPS)
    return (f"{hint} At this rate the chip is full after about ", left, " more steps.")


def _steps_left(ledger: Ledger, per_step_bytes: float) -> int | None:
    """Steps until what is above the peak is used up; None for a chip that is in no table."""
    chip = find_chip(ledger.trace.chip)
    if chip is None:
        return None
    return max(int((chip.total_memory_bytes - ledger.memory.peak_bytes) / per_step_bytes), 0)
