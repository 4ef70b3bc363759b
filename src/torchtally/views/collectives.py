"""Collectives of a run of several ranks: what each costs, and how much of it nothing hides."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from torchtally.ledger import Entry, Ledger
from torchtally.ledger.total import Line
from torchtally.table import Cell, Column, Prose, Table, sentences
from torchtally.timing.network import Transfer
from torchtally.trace import Phase
from torchtally.units import Unit
from torchtally.views.lines import short_place
from torchtally.views.money import with_something
from torchtally.views.network_evidence import Evidence, evidence
from torchtally.views.view import view
from torchtally.work import Kind

COLUMNS = (
    Column("exposed_s", "exposed", Unit.SECONDS),
    Column("waiting_s", "waiting", Unit.SECONDS),
    Column("network_s", "network", Unit.SECONDS),
    Column("count", "calls", Unit.COUNT),
    Column("collective", "collective", Unit.NAME),
    Column("group", "group", Unit.NAME, rank=1),
    Column("ranks", "ranks", Unit.COUNT, rank=2),
    Column("payload_bytes", "bytes each", Unit.BYTES),
    Column("bus_bytes_per_s", "busbw", Unit.BYTE_PER_S, rank=3),
    Column("algorithm", "algorithm", Unit.NAME, rank=4),
    Column("phase", "phase", Unit.NAME, rank=5),
    Column("dtype", "dtype", Unit.NAME, rank=6),
    Column("line", "line", Unit.LINE),
)
SUMMED = 4
"""The first so many add up."""


@dataclass(frozen=True, slots=True)
class NetworkTime:
    """The collectives of the reported period."""

    busy_s: float
    """How long they run, each by itself."""
    exposed_s: float
    """Of the step: while no kernel computes."""
    waiting_s: float
    """Of the step: for other ranks that come later, while no kernel computes."""
    slowest: float = 1.0
    """How many times the mean of its ranks' GPUs the kernels are timed as: those of the slowest."""

    @property
    def hidden_share(self) -> float:
        # all of it exposed may sum to more than it runs, by a rounding
        return max(0.0, 1 - self.exposed_s / self.busy_s) if self.busy_s else 0.0


def collectives_of(ledger: Ledger) -> list[Entry]:
    """Those of the reported period on the device."""
    return [entry for entry in ledger.reported if entry.kind is Kind.COMMUNICATION]


def network_time(ledger: Ledger) -> NetworkTime | None:
    """None where nothing was sent, or no time is known."""
    entries = collectives_of(ledger)
    if not entries or ledger.roofline is None:
        return None
    slots = [ledger.slot(entry) for entry in entries]
    return NetworkTime(
        busy_s=fsum(slot.kernel_s for slot in slots),
        exposed_s=fsum(slot.exposed_s for slot in slots),
        waiting_s=fsum(slot.waiting_s for slot in slots),
        slowest=ledger.roofline.slowest,
    )


Key = tuple[str, int | None, int, str, Phase, Line | None]


def key_of(entry: Entry) -> Key:
    """What collectives of one row share."""
    call, group = entry.call, entry.call.literal("group")
    dtype = call.inputs[0].dtype if call.inputs else ""
    number = group if isinstance(group, int) else None
    payload = entry.cost.network_bytes
    return call.name, number, payload, dtype, entry.op.phase, entry.line


@view("collective", "collectives: group, bytes, algorithm, and exposed time", "time")
def collectives(ledger: Ledger) -> Table:
    """Table by operator, group, bytes, dtype, phase and line; the most exposed first."""
    rows: dict[Key, list[Entry]] = {}
    for entry in collectives_of(ledger):
        rows.setdefault(key_of(entry), []).append(entry)
    cells = [row_of(ledger, key, entries) for key, entries in rows.items()]
    cells.sort(key=lambda row: tuple(-cell for cell in row[:2] if isinstance(cell, int | float)))
    sums = (sum_of(cells, place) for place in range(SUMMED))
    world = ledger.trace.world
    told = [each.sentence for each in evidence_of(ledger)]
    table = Table(
        title=f"Collectives of rank {world.rank} of {world.size}",
        columns=COLUMNS,
        rows=tuple(cells),
        totals=(*sums, *[None] * (len(COLUMNS) - SUMMED)),
        note=sentences(remark(cells), *told),
    )
    return with_something(table, optional=("waiting_s",))


def evidence_of(ledger: Ledger) -> tuple[Evidence, ...]:
    """Which changes are worth a run, by what is exposed; none without times."""
    if ledger.roofline is None:
        return ()
    timed = [(entry, transfer_of(ledger, entry)) for entry in collectives_of(ledger)]
    return tuple(evidence(ledger, timed))


def row_of(ledger: Ledger, key: Key, entries: list[Entry]) -> tuple[Cell, ...]:
    name, number, payload_bytes, dtype, phase, line = key
    groups = ledger.trace.groups
    group = groups[number] if number is not None and number < len(groups) else None
    transfer = transfer_of(ledger, entries[0])
    is_timed = ledger.is_timed
    slots = [ledger.slot(entry) for entry in entries]
    return (
        fsum(slot.exposed_s for slot in slots) if is_timed else None,
        fsum(slot.waiting_s for slot in slots) if is_timed else None,
        fsum(slot.kernel_s for slot in slots) if is_timed else None,
        len(entries),
        name,
        "" if group is None else group.description,
        None if group is None else len(group.ranks),
        payload_bytes,
        transfer.bus_bytes_per_s if transfer is not None and transfer.sent_bytes else None,
        "" if transfer is None else transfer.way,
        str(phase),
        dtype,
        "" if line is None else short_place(line),
    )


def transfer_of(ledger: Ledger, entry: Entry) -> Transfer | None:
    """The way that NCCL takes; None where the group or the chip is not known."""
    roofline = ledger.roofline
    if roofline is None or roofline.ranks is None:
        return None
    return roofline.ranks.transfer(entry.call, entry.cost.network_bytes, roofline.chip)


def sum_of(rows: Iterable[tuple[Cell, ...]], place: int) -> Cell:
    cells = [row[place] for row in rows]
    numbers = [cell for cell in cells if isinstance(cell, int | float)]
    return sum(numbers) if len(numbers) == len(cells) else None


def remark(rows: list[tuple[Cell, ...]]) -> Prose:
    if not rows:
        return "No collective ran on the device."
    return (
        "Exposed: the part of the step in which the collective runs and nothing computes; the "
        "rest of its time overlaps with kernels. Time spent waiting for other ranks is in "
        "neither."
    )
