"""Does it fit, and how fast is a step? By the step itself, written out of a program.

Of a known model trained by its class's own operators, on one chip or by FSDP2, there is a program
(`programs/shipped.py`): its memory is what the allocator hands out, its time the schedule's, as of
a run. What no program is for is answered by closed forms (`fit.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.ledger import Ledger, Total, account
from torchtally.memory import Category
from torchtally.plan.architecture.known import known_row
from torchtally.plan.parallel.chip_memory import outside
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.step import Workload
from torchtally.plan.quantity import Quantity, of, total
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.shares import memory_by_category
from torchtally.programs.compiled import Regions, compiled
from torchtally.programs.shipped import shipped_step
from torchtally.programs.step import FULLY_SHARDED, AskedStep, mode_text
from torchtally.table import Cell, Column, Table
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace, World
from torchtally.units import Unit

NOTES = {Category.ACTIVATIONS: "kept for the backward pass", Category.WORKSPACES: "of cuBLAS"}


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step as a ledger has it, in the quantities of a plan."""

    source: str
    """What was written out of what, in words."""
    memory: Quantity
    """Reserved by the allocator at most, and the context."""
    seconds: Quantity
    memory_by_category: Table
    time_by_phase: Table


def written_step(
    request: Request, workload: Workload, layout: Layout, regions: Regions | None = None
) -> WrittenStep | None:
    """The step that a program writes, with kernels of its regions; None where none is for it, and
    for a chip without times.
    """
    trace = trace_of(request, workload, layout)
    if trace is None:
        return None
    source = trace.notes[0].text
    if regions is not None:
        trace = compiled(trace, regions)
        source = f"{source}; {trace.notes[-1].text}"
    ledger = account(trace, roofline=Roofline(request.chip))
    if ledger.untimed:
        return None
    parts = memory_parts(ledger, outside(layout, request.chip))
    phases = {phase.value: part for phase, part in ledger.by_phase().items() if part.seconds}
    seconds = total(
        "step",
        Unit.SECONDS,
        {name: of(part.seconds, Unit.SECONDS, name) for name, part in phases.items()},
    )
    memory = total("memory", Unit.BYTES, {name: part for name, (part, _) in parts.items()})
    return WrittenStep(
        source, memory, seconds, memory_table(parts, memory, ledger), time_table(phases, seconds)
    )


def trace_of(request: Request, workload: Workload, layout: Layout) -> Trace | None:
    """The trace of a known model's step, where a program is shipped for it."""
    try:
        row = known_row(workload.model.name)
    except UsageError:
        return None
    if row.config is None or row.model() != request.of_subject.model:
        return None
    cluster = request.of_cluster
    asked = AskedStep(
        batch=layout.micro_batch,
        sequence=workload.sequence,
        usual_sequence=workload.sequence,
        mode=mode_text(
            layout=FULLY_SHARDED if layout.is_fully_sharded else "",
            optimizer=request.optimizer.name,
            recipe=request.recipe.name,
            recompute=layout.recompute.value,
        ),
        chip=request.chip,
        command="",
        world=World(cluster.count, cluster.node_size) if cluster.count > 1 else World(),
    )
    return shipped_step(row.config["model_type"], row.name, asked)


def memory_parts(ledger: Ledger, outside: Quantity) -> dict[str, tuple[Quantity, str]]:
    """Bytes at the peak by category, with what they are; what else the allocator has reserved, and
    what is outside of it.
    """
    memory = ledger.memory
    parts = {
        category.value: (
            of(held_bytes, Unit.BYTES, category.value.replace("_", " ")),
            NOTES.get(category, ""),
        )
        for category, held_bytes in memory.at_peak
        if held_bytes
    }
    reserved = max(each.bytes for each in ledger.trace.reserved) - memory.peak_bytes
    return {
        **parts,
        "reserved": (of(reserved, Unit.BYTES, "reserved besides"), "free in the allocator"),
        "outside": (outside, outside.note),
    }


def memory_table(parts: dict[str, tuple[Quantity, str]], memory: Quantity, ledger: Ledger) -> Table:
    ops = ledger.trace.ops
    phase = ops[min(ledger.memory.peak_tick, len(ops) - 1)].phase
    title = f"Memory of the chip at its peak ({phase.value}), by category"
    rows = ((part.name, part, note) for part, note in parts.values())
    return memory_by_category(title, rows, memory.value)


def time_table(phases: Mapping[str, Total], seconds: Quantity) -> Table:
    """Seconds by phase; of ranks that communicate, how long collectives run and how much shows."""
    columns = [
        Column("part", "part", Unit.NAME),
        Column("seconds", "time", Unit.SECONDS),
        Column("seconds_share", "share", Unit.FRACTION),
    ]
    parts = sorted(phases.items(), key=lambda item: -item[1].seconds)
    whole = sum(phases.values(), Total())
    rows: list[tuple[Cell, ...]] = [
        (name, part.seconds, part.seconds / seconds.value) for name, part in parts
    ]
    totals: tuple[Cell, ...] = (None, seconds.value, 1.0)
    if whole.network_s:
        columns += [
            Column("network_s", "network", Unit.SECONDS),
            Column("exposed_s", "exposed", Unit.SECONDS),
        ]
        each = [(part.network_s, part.exposed_s) for _, part in parts]
        rows = [(*row, *network) for row, network in zip(rows, each, strict=True)]
        totals = (*totals, whole.network_s, whole.exposed_s)
    return Table(title="Time of a step", columns=tuple(columns), rows=tuple(rows), totals=totals)
