"""The ranks that ran together: what each holds, computes, waits for, and sends."""

from collections.abc import Iterator

from torchtally.ledger import Ledger
from torchtally.table import Column, Number, Prose, Table
from torchtally.units import Unit
from torchtally.views.collectives import network_time
from torchtally.views.parameters import parameters_of
from torchtally.views.summary import reserved_bytes_of
from torchtally.views.view import view

COLUMNS = (
    Column("step_s", "step", Unit.SECONDS),
    Column("compute_s", "computing", Unit.SECONDS),
    Column("exposed_s", "network", Unit.SECONDS),
    Column("waiting_s", "waiting", Unit.SECONDS),
    Column("idle_s", "idle", Unit.SECONDS),
    Column("peak_allocated_bytes", "peak", Unit.BYTES),
    Column("peak_reserved_bytes", "reserved", Unit.BYTES),
    Column("flops", "FLOPs", Unit.FLOPS, rank=1),
    Column("parameters", "parameters", Unit.PARAMETERS, rank=2),
    Column("rank", "rank", Unit.NAME),
)


@view("rank", "the ranks that ran together: time, waiting and memory of each", "time")
def ranks(ledger: Ledger) -> Table:
    """A row for each rank that was simulated, by number. Their parts of the step sum to it."""
    ledgers = sorted((ledger, *ledger.others), key=lambda each: each.trace.world.rank)
    rows = tuple(row_of(each) for each in ledgers)
    return Table(
        title=f"Ranks simulated, of {ledger.trace.world.size}",
        columns=COLUMNS,
        rows=rows,
        totals=(None,) * len(COLUMNS),
        note=note_of(ledger, rows),
    )


def row_of(ledger: Ledger) -> tuple[int | float | str | None, ...]:
    network, is_timed = network_time(ledger), ledger.roofline is not None
    slots = [ledger.slot(entry) for entry in ledger.reported] if is_timed else []
    waiting_s = sum(slot.waiting_s for slot in slots)
    idle_s = sum(slot.idle_s or (slot.seconds if not slot.kernel_s else 0.0) for slot in slots)
    exposed_s = 0.0 if network is None else network.exposed_s
    step_s = ledger.total.seconds
    parameters = parameters_of(ledger)
    times = (step_s, step_s - waiting_s - idle_s - exposed_s, exposed_s, waiting_s, idle_s)
    return (
        *(times if is_timed else (None,) * len(times)),
        ledger.memory.peak_bytes,
        reserved_bytes_of(ledger),
        ledger.total.flops,
        None if parameters is None else parameters.own_elements,
        str(ledger.trace.world.rank),
    )


def note_of(ledger: Ledger, rows: tuple[tuple[int | float | str | None, ...], ...]) -> Prose:
    """Which ranks these stand for, and what is wrong with how they meet."""
    return tuple(_parts(ledger, rows))


def _parts(
    ledger: Ledger, rows: tuple[tuple[int | float | str | None, ...], ...]
) -> Iterator[str | Number]:
    yield "Waiting: for later ranks (pipeline bubbles, uneven loads); idle: for "
    yield "the host; network: exposed communication."
    if len(rows) < ledger.trace.world.size:
        yield " The other ranks were not simulated: they are assumed to be on time."
    if ledger.times.stuck:
        yield " Collectives or messages that some rank never joined: "
        yield Number(ledger.times.stuck, Unit.COUNT)
        yield ". A real run may hang there."
