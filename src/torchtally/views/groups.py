"""Groups of ranks: what each communicator carries, and how much of it nothing hides."""

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

from torchtally.ledger import Entry, Ledger
from torchtally.table import Cell, Column, Prose, Table
from torchtally.timing.network import RankGroup
from torchtally.trace import ProcessGroup
from torchtally.units import Unit
from torchtally.views.collectives import collectives_of, sum_of
from torchtally.views.money import with_something
from torchtally.views.view import view

COLUMNS = (
    Column("exposed_s", "exposed", Unit.SECONDS),
    Column("waiting_s", "waiting", Unit.SECONDS),
    Column("network_s", "network", Unit.SECONDS),
    Column("count", "calls", Unit.COUNT),
    Column("payload_bytes", "bytes", Unit.BYTES),
    Column("group", "group", Unit.NAME),
    Column("ranks", "ranks", Unit.COUNT),
    Column("nodes", "nodes", Unit.COUNT, rank=2),
    Column("members", "members", Unit.NAME, rank=1),
    Column("collectives", "collectives", Unit.NAME, rank=3),
)
SUMMED = 5
"""The first so many add up."""


@view("group", "groups of ranks: bytes each carries, and exposed time", "time")
def groups(ledger: Ledger) -> Table:
    """Table by the group that a collective names; the most exposed first."""
    rows: dict[int | None, list[Entry]] = {}
    for entry in collectives_of(ledger):
        number = entry.call.literal("group")
        rows.setdefault(number if isinstance(number, int) else None, []).append(entry)
    cells = [row_of(ledger, number, entries) for number, entries in rows.items()]
    cells.sort(
        key=lambda row: tuple(-cell for cell in row[:SUMMED] if isinstance(cell, int | float))
    )
    sums = (sum_of(cells, place) for place in range(SUMMED))
    world = ledger.trace.world
    table = Table(
        title=f"Groups of rank {world.rank} of {world.size}",
        columns=COLUMNS,
        rows=tuple(cells),
        totals=(*sums, *[None] * (len(COLUMNS) - SUMMED)),
        note=remark(cells),
    )
    return with_something(table, optional=("waiting_s",))


def row_of(ledger: Ledger, number: int | None, entries: Sequence[Entry]) -> tuple[Cell, ...]:
    known = ledger.trace.groups
    group = known[number] if number is not None and number < len(known) else None
    is_timed = ledger.roofline is not None
    slots = [ledger.slot(entry) for entry in entries]
    return (
        fsum(slot.exposed_s for slot in slots) if is_timed else None,
        fsum(slot.waiting_s for slot in slots) if is_timed else None,
        fsum(slot.kernel_s for slot in slots) if is_timed else None,
        len(entries),
        sum(entry.cost.network_bytes for entry in entries),
        "" if group is None else group.description,
        *place_of(group, ledger.trace.world.gpus_per_node),
        ", ".join(sorted({entry.call.name.partition(".")[2] for entry in entries})),
    )


def place_of(group: ProcessGroup | None, node_size: int) -> tuple[int | None, int | None, str]:
    """(its ranks, the nodes they are on, who they are); nothing where the group is not known."""
    if group is None:
        return None, None, ""
    where = RankGroup.of_ranks(group.ranks, node_size)
    return where.ranks, where.nodes, ranks_text(group.ranks)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks at one distance as "0-7" or "0-56 by 8"; others one by one."""
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) < 3 or len(steps) > 1 or min(steps) < 1:
        return ", ".join(map(str, ranks))
    (step,) = steps
    return f"{ranks[0]}-{ranks[-1]}" + (f" by {step}" if step > 1 else "")


def remark(rows: Sequence[tuple[Cell, ...]]) -> Prose:
    if not rows:
        return "No collective ran on the device."
    return "A group is a communicator; its bytes are what each of its ranks passes in."
