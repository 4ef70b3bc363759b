"""Does it fit one chip, and how fast is a step? By the step itself, written out of a program.

Of a known model trained by its class's own operators there is a program (`programs/shipped.py`):
its memory is what the allocator hands out, its time the schedule's, as of a run. What no program is
for is answered by closed forms (`fit.py`).
"""

from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.memory import Category
from torchtally.memory.workspace import context_bytes
from torchtally.plan.architecture.known import known_row
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.step import Workload
from torchtally.plan.quantity import Quantity, of, total
from torchtally.plan.questions.request import Request
from torchtally.programs.compiled import Regions, compiled
from torchtally.programs.shipped import shipped_step
from torchtally.programs.step import AskedStep, mode_text
from torchtally.table import Column, Table
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace
from torchtally.units import Unit

NOTES = {
    Category.ACTIVATIONS: "kept for the backward pass",
    Category.WORKSPACES: "of cuBLAS",
}


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
    parts = memory_parts(ledger, request)
    phases = {
        phase.value: of(part.seconds, Unit.SECONDS, phase.value)
        for phase, part in ledger.by_phase().items()
        if part.seconds
    }
    seconds = total("step", Unit.SECONDS, phases)
    memory = total("memory", Unit.BYTES, {name: part for name, (part, _) in parts.items()})
    return WrittenStep(
        source,
        memory,
        seconds,
        memory_table(parts, memory, ledger),
        time_table(phases, seconds),
    )


def trace_of(request: Request, workload: Workload, layout: Layout) -> Trace | None:
    """The trace of a known model's step, where a program is shipped for it."""
    try:
        row = known_row(workload.model.name)
    except UsageError:
        return None
    if row.config is None or row.model() != request.of_subject.model:
        return None
    asked = AskedStep(
        batch=layout.micro_batch,
        sequence=workload.sequence,
        usual_sequence=workload.sequence,
        mode=mode_text(
            optimizer=request.optimizer.name,
            recipe=request.recipe.name,
            recompute=layout.recompute.value,
        ),
        chip=request.chip,
        command="",
    )
    return shipped_step(row.config["model_type"], row.name, asked)


def memory_parts(ledger: Ledger, request: Request) -> dict[str, tuple[Quantity, str]]:
    """Bytes at the peak by category, with what they are; what else the allocator has reserved, and
    the context.
    """
    memory = ledger.memory
    parts = {
        category.value: (
            of(held_bytes, Unit.BYTES, category.value.replace("_", " ")), NOTES.get(category, "")
        )
        for category, held_bytes in memory.at_peak
        if held_bytes
    }  # fmt: skip
    reserved = max(each.bytes for each in ledger.trace.reserved) - memory.peak_bytes
    context = context_bytes(request.chip)
    return {
        **parts,
        "reserved": (of(reserved, Unit.BYTES, "reserved besides"), "free in the allocator"),
        "context": (of(context, Unit.BYTES, "context"), "estimated: CUDA's context"),
    }


def memory_table(parts: dict[str, tuple[Quantity, str]], memory: Quantity, ledger: Ledger) -> Table:
    ops = ledger.trace.ops
    phase = ops[min(ledger.memory.peak_tick, len(ops) - 1)].phase
    rows = sorted(parts.values(), key=lambda part: -part[0].value)
    return Table(
        title=f"Memory of the chip at its peak ({phase.value}), by category",
        columns=(
            Column("category", "category", Unit.NAME),
            Column("bytes", "memory", Unit.BYTES),
            Column("bytes_share", "share", Unit.FRACTION),
            Column("note", "what", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (part.name, part.value, part.value / memory.value, note)
            for part, note in rows
            if part.value
        ),
        totals=(None, memory.value, 1.0, None),
    )


def time_table(phases: dict[str, Quantity], seconds: Quantity) -> Table:
    rows = sorted(phases.items(), key=lambda item: -item[1].value)
    return Table(
        title="Time of a step",
        columns=(
            Column("part", "part", Unit.NAME),
            Column("seconds", "time", Unit.SECONDS),
            Column("seconds_share", "share", Unit.FRACTION),
        ),
        rows=tuple((name, part.value, part.value / seconds.value) for name, part in rows),
        totals=(None, seconds.value, 1.0),
    )
