"""All that the page shows, as data: tables of numbers that its scripts group, sort and draw.

Columns are lists, one for each quantity, since they compress to a fraction of rows. A column whose
name ends in `_steps` holds differences from the row before. Numbers are FLOPs, bytes, nanoseconds
(`_ns`) and seconds (`_s`); -1 stands for none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchtally.diagnosis import diagnose
from torchtally.ledger import Ledger
from torchtally.progress import printable
from torchtally.report.browser.places import (
    Columns,
    Document,
    Places,
    files_document,
    name_text,
    place_text,
    steps_of,
)
from torchtally.report.diagnoses import diagnosis_sentences
from torchtally.report.effects import sections
from torchtally.report.generation import generation_verdict
from torchtally.report.glossary import glossary
from torchtally.report.ledger import ledger_facts
from torchtally.report.odd_sizes import odd_size_sentences
from torchtally.report.prose import in_words
from torchtally.report.text import verdict
from torchtally.table import Table
from torchtally.trace import Phase, Role, TensorSpec
from torchtally.trace.ranks import COMMUNICATORS
from torchtally.units import format_bytes, format_number
from torchtally.views import by
from torchtally.views.generation import generation_figures
from torchtally.views.lines import is_behind_libraries, root_of
from torchtally.views.moments import moment_at
from torchtally.views.odd_sizes import odd_sizes
from torchtally.views.parameters import parameters_of
from torchtally.views.peak import title_of
from torchtally.views.plot import Plot
from torchtally.views.provenance import Provenances, provenances
from torchtally.views.ranges import memory_range
from torchtally.views.roofline_plot import roofline_plot
from torchtally.views.summary import caveats_of, judge, shortage_of, surroundings_of
from torchtally.views.time_range import time_range
from torchtally.views.timeline import BAR_ORDER
from torchtally.views.tracks import lanes_of, name_of, timed_parts

VERSION = 1
MOST_ROWS = 1000
MOST_SLICES = 60_000
"""Of a stream."""
TABLES = ("phase", "bound", "utilisation", "kernel", "step", "category", "workspace", "growth")
"""Views that the page shows as they are."""
NETWORK_TABLES = ("collective", "group", "rank")
PHASES = tuple(Phase)


def page_document(ledger: Ledger, sources: Mapping[str, str]) -> Document:
    """What the page shows of a run. `sources` are texts of files that ran, by their path."""
    table = provenances(ledger)
    tables = (*TABLES, *(NETWORK_TABLES if ledger.total.network_bytes else ()))
    places = Places(ledger, table)
    sites = places.sites()
    views = {name: by(ledger, name).for_readers().top(MOST_ROWS) for name in tables}
    return {
        "version": VERSION,
        **_about(ledger),
        "verdict": _verdict(ledger, views["utilisation"]),
        "total": _total(ledger),
        "phases": [str(phase) for phase in PHASES],
        "jobs": _jobs(ledger, table),
        "rows": _rows(table),
        "costs": _costs(table),
        "sites": sites,
        "lines": places.lines(),
        "files": files_document(places, sources),
        "modules": places.modules(),
        "ops": _ops(ledger, table),
        "memory": _memory(ledger),
        "lanes": [] if ledger.roofline is None else _lanes(ledger, table),
        "roofline": None if ledger.roofline is None else _plot(roofline_plot(ledger)),
        "tables": {name: _table(view) for name, view in views.items()},
        "coverage": {
            "counted": ledger.coverage.counted,
            "free": ledger.coverage.free,
            "uncounted": [
                [name_text(each.op), each.count, name_text(each.reason)]
                for each in ledger.coverage.uncounted
            ],
            "untimed": [
                [name_text(each.op), each.count, name_text(each.reason)] for each in ledger.untimed
            ],
        },
        "placeholders": [
            [
                place_text(each.frame, places.root),
                name_text(each.frame.text) if each.frame else "",
                name_text(each.op),
                name_text(each.given),
                str(each.use),
                each.count,
            ]
            for each in ledger.trace.placeholders
        ],
        "remarks": _remarks(ledger, places.root),
        "glossary": list(glossary().items()),
    }


def _about(ledger: Ledger) -> Document:
    trace = ledger.trace
    return {
        "script": name_text(trace.script),
        "chip": name_text(trace.chip),
        "period": ledger.period,
        "facts": [name_text(fact) for fact in facts(ledger)],
        "rank": [trace.world.rank, trace.world.size],
        "ending": [trace.ending.kind, name_text(trace.ending.message)],
        "is_behind_libraries": ledger.delegate is None and is_behind_libraries(ledger),
        "delegate": None if ledger.delegate is None else name_text(ledger.delegate.text),
    }


def facts(ledger: Ledger) -> tuple[str, ...]:
    """Sentences below the title."""
    chip = trace_chip = ledger.trace.chip
    if ledger.roofline is not None:
        chip = ledger.roofline.chip.name
    return (*ledger_facts(ledger), *([f"Timed on {chip}."] if chip != trace_chip else []))


def _verdict(ledger: Ledger, rates: Table) -> Document:
    outcome, memory, time = judge(ledger), memory_range(ledger), time_range(ledger)
    shortage = shortage_of(ledger)
    parameters = parameters_of(ledger)
    utilisation = next(
        (dict(zip((c.name for c in rates.columns), row, strict=True)) for row in rates.rows), None
    )
    return {
        "sentence": name_text(verdict(outcome)),
        "generation": name_text(generation_verdict(generation_figures(ledger))),
        "claim": memory.claim,
        "low_bytes": memory.low_bytes,
        "likely_bytes": memory.likely_bytes,
        "high_bytes": memory.high_bytes,
        "is_open": int(memory.is_open),
        "capacity_bytes": memory.capacity_bytes,
        "allocated_bytes": outcome.peak_bytes,
        "reserved_bytes": outcome.reserved_bytes,
        "context_bytes": outcome.context_bytes,
        "communicator_bytes": outcome.communicators.bytes,
        "peak_moment": name_text(outcome.peak_moment),
        "caveats": [name_text(caveat) for caveat in caveats_of(ledger)],
        "causes": [
            name_text(sentence)
            for sentence in diagnosis_sentences(diagnose(ledger), root_of(ledger.by_line()))
        ],
        "time": None
        if time is None
        else {
            "low_s": time.low_s,
            "step_s": time.likely_s,
            "high_s": time.high_s,
            "error": time.error,
            "basis": time.basis,
        },
        "mfu": None
        if utilisation is None or utilisation["peak_share"] is None
        else [name_text(str(utilisation["name"])), utilisation["peak_share"]],
        "parameters": None if parameters is None else parameters.elements,
        "is_rank_share": parameters is not None and parameters.is_rank_share,
        "shortage": None
        if shortage is None
        else f"Out of memory in {name_text(shortage.moment)}: requested "
        f"{format_bytes(shortage.refusal.requested_bytes)}.",
    }


def _total(ledger: Ledger) -> Document:
    """What the page's own sums must come to."""
    total = ledger.total
    return {
        "count": total.count,
        "flops": total.flops,
        "bytes_moved": total.bytes,
        "bytes_saved": total.bytes_saved,
        "seconds": total.seconds if ledger.roofline is not None else None,
        "kernel_s": total.kernel_s,
        "network_bytes": total.network_bytes,
    }


# Operators -------------------------------------------------------------------------------------


def _jobs(ledger: Ledger, table: Provenances) -> Document:
    """Operators with their shapes, and what each costs once."""
    specs: dict[tuple[str, tuple[int, ...], tuple[int, ...], bool], int] = {}

    def number(spec: TensorSpec) -> int:
        key = (spec.dtype, spec.shape, spec.stride, spec.is_on_device)
        return specs.setdefault(key, len(specs))

    calls = [ledger.trace.calls[cost.job.call] for cost in table.jobs]
    jobs: Columns = {
        "name": [name_text(cost.operator) for cost in table.jobs],
        "kernel": [
            name_text(call.name) if call.fused is not None and call.fused.parts else ""
            for call in calls
        ],
        "kind": [str(cost.kind) for cost in table.jobs],
        "is_view": [int(cost.kind.is_free and call.is_view) for cost, call in _pairs(table, calls)],
        "is_copy": [
            int(str(cost.kind) == "copy" and bool(call.inputs))
            for cost, call in _pairs(table, calls)
        ],
        "flops": [cost.cost.flops for cost in table.jobs],
        "bytes_read": [cost.cost.bytes_read for cost in table.jobs],
        "bytes_written": [cost.cost.bytes_written for cost in table.jobs],
        "network_bytes": [cost.cost.network_bytes for cost in table.jobs],
        "inputs": [[number(spec) for spec in call.inputs[:12]] for call in calls],
        "outputs": [[number(spec) for spec in call.outputs[:12]] for call in calls],
        "literals": [
            name_text(", ".join(f"{name}={value}" for name, value in call.literals))
            for call in calls
        ],
    }
    return {
        **jobs,
        "specs": [
            [dtype, shape, [] if _is_contiguous(shape, stride) else stride, int(is_on_device)]
            for dtype, shape, stride, is_on_device in specs
        ],
    }


def _pairs(table: Provenances, calls: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(table.jobs, calls, strict=True)


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    step = 1
    for size, own in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and own != step:
            return False
        step *= size
    return True


def _rows(table: Provenances) -> Columns:
    return {
        "job": [row.job for row in table.rows],
        "site": [row.site for row in table.rows],
        "phase": [PHASES.index(row.phase) for row in table.rows],
        "stream": [row.stream for row in table.rows],
    }


def _costs(table: Provenances) -> Columns:
    """Costs of the reported period, by row and bound."""
    columns: Columns = {
        "row_steps": steps_of([row for row, _ in table.spent]),
        "bound": [str(bound) for _, bound in table.spent],
    }
    for name in ("count", "bytes_allocated", "bytes_saved"):
        columns[name] = [getattr(spent, name) for spent in table.spent.values()]
    for name in ("seconds", "kernel_s", "network_s", "exposed_s"):
        of_all = [getattr(spent, name) for spent in table.spent.values()]
        columns[name] = [float(f"{seconds:.9g}") for seconds in of_all] if any(of_all) else []
    return columns


def _ops(ledger: Ledger, table: Provenances) -> Columns:
    """Every operator of the run, in order."""
    slots = ledger.times.slots
    return {
        "tick_steps": steps_of([op.clock for op in ledger.trace.ops]),
        "row_steps": steps_of(table.of_kernels),
        "ns": [] if ledger.roofline is None else [round(slot.seconds * 1e9) for slot in slots],
    }


# Memory ----------------------------------------------------------------------------------------


def _memory(ledger: Ledger) -> Document:
    """Every storage of the device: what it is, and from when to when it lives."""
    memory, trace = ledger.memory, ledger.trace
    place_of = {op.clock: place for place, op in enumerate(trace.ops)}
    held = {category: number for number, category in enumerate(BAR_ORDER)}
    categories = [held[category] for category in memory.categories]
    outputs: list[int] = []
    for storage in memory.storages:
        place = place_of.get(storage.born)
        results = trace.ops[place].outputs if place is not None else ()
        outputs.append(results.index(storage.number) if storage.number in results else -1)
    return {
        "device": name_text(memory.device),
        "categories": list(map(title_of, BAR_ORDER)),
        "peak_tick": memory.peak_tick,
        "peak_bytes": memory.peak_bytes,
        "step_ends": list(trace.step_ends),
        "period": [ledger.reported_period.first, ledger.reported_period.end],
        "moment": name_text(str(moment_at(ledger, memory.peak_tick) or "")),
        "refused_ticks": [
            refusal.tick for refusal in trace.refusals if refusal.device == memory.device
        ],
        "reserved": {
            "tick_steps": steps_of([r.tick for r in trace.reserved if r.device == memory.device]),
            "bytes": [r.bytes for r in trace.reserved if r.device == memory.device],
        },
        "storages": {
            "born_steps": steps_of([storage.born for storage in memory.storages]),
            "life": [
                -1 if storage.died is None else storage.died - storage.born
                for storage in memory.storages
            ],
            "bytes": [storage.bytes for storage in memory.storages],
            "category": categories,
            "output": outputs,
        },
        "names": {
            str(place): name_text(storage.name)
            for place, storage in enumerate(memory.storages)
            if storage.name
        },
        "owned": [
            place
            for place, storage in enumerate(memory.storages)
            if storage.name and storage.role in (Role.PARAMETER, Role.BUFFER)
        ],
    }


# Streams ---------------------------------------------------------------------------------------


def _lanes(ledger: Ledger, table: Provenances) -> list[Document]:
    """What each stream and communicator of every rank does when, in nanoseconds.

    A slice is a row of this rank's; another rank's is -1 - n for the n-th of the lane's `others`:
    its operator, what limits it, its phase. `gap_ns` is how
    long nothing ran before it, `wait_ns` the part in which a collective waits for other ranks.
    """
    lanes = []
    for part, begins_s in timed_parts(ledger):
        is_own = part.ledger is ledger
        for lane in lanes_of(part, begins_s):
            others: dict[tuple[str, str, str], int] = {}
            rows, gaps, durations, waits = [], [], [], []
            end_ns = 0
            for stretch in lane.stretches[:MOST_SLICES]:
                first = stretch.entries[0]
                if is_own:
                    rows.append(table.of_kernels[first.number])
                else:
                    bound = part.ledger.slot(first).bound
                    key = (name_text(first.call.name), str(bound), str(first.op.phase))
                    rows.append(-1 - others.setdefault(key, len(others)))
                gaps.append(stretch.start_ns - end_ns)
                durations.append(stretch.end_ns - stretch.start_ns)
                waits.append(stretch.met_ns - stretch.start_ns)
                end_ns = stretch.end_ns
            lanes.append(
                {
                    "rank": name_of(part),
                    "name": name_text(lane.name),
                    "is_communicator": int(lane.stream >= COMMUNICATORS),
                    "row_steps": steps_of(rows),
                    "gap_ns": gaps,
                    "ns": durations,
                    "wait_ns": waits if any(waits) else [],
                    "others": list(others),
                    "left_out": max(0, len(lane.stretches) - MOST_SLICES),
                }
            )
    return lanes


# The rest --------------------------------------------------------------------------------------


def _plot(plot: Plot) -> Document:
    return {
        "title": name_text(plot.title),
        "x": [plot.x.title, str(plot.x.scale), plot.x.low, plot.x.high],
        "y": [plot.y.title, str(plot.y.scale), plot.y.low, plot.y.high],
        "series": list(plot.series),
        "curves": [
            [
                name_text(f"{curve.name} {format_number(curve.limit, curve.unit)} {curve.basis}"),
                str(curve.basis),
                [list(point) for point in curve.points],
            ]
            for curve in plot.curves
        ],
        "marks": [
            [
                float(f"{mark.x:.5g}"),
                float(f"{mark.y:.5g}"),
                mark.series,
                float(f"{mark.weight:.5g}"),
                name_text(mark.name),
                name_text(mark.detail),
                name_text(mark.place),
            ]
            for mark in plot.marks
        ],
        "left_out": [[name, share] for name, share in plot.left_out],
        "note": name_text(plot.note),
    }


def _table(table: Table) -> Document:
    return {
        "title": name_text(in_words(table.title)),
        "columns": [
            [column.name, name_text(column.title), str(column.unit)] for column in table.columns
        ],
        "rows": [
            [name_text(cell) if isinstance(cell, str) else cell for cell in row]
            for row in table.rows
        ],
        "totals": [name_text(cell) if isinstance(cell, str) else cell for cell in table.totals],
        "left_out": table.left_out,
        "note": printable(in_words(table.note)[:2000]),
    }


def _remarks(ledger: Ledger, root: str) -> list[Document]:
    """Sentences with the lines below each: where the run differs from a real one."""
    trace = ledger.trace
    remarks = []
    if trace.notes:
        lines = [
            f"{note.text} ({note.count} times)" if note.count > 1 else note.text
            for note in trace.notes
        ]
        remarks.append(("Differences from a real GPU", lines))
    remarks += [(title, list(lines)) for title, lines in sections(surroundings_of(trace), root)]
    if ledger.step_s:
        remarks += [
            (sentence, [])
            for sentence in odd_size_sentences(odd_sizes(ledger), ledger.step_s, root)
        ]
    return [
        {"title": name_text(title), "lines": [name_text(line) for line in lines]}
        for title, lines in remarks
    ]
