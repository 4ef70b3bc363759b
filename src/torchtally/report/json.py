"""The account as a document for programs. Keys are stable; a change of meaning raises the version.

FLOPs and bytes are whole numbers, seconds are not; unknown values are null. `flops`, `time`,
`utilisation`, `throughput`, `lines`, `modules`, `ops` and `coverage` are of one period, which `per`
names ("steady-state step 2"); `memory` is of the whole run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from torchtally.chips import Chip
from torchtally.fit.results import ChangeResult
from torchtally.ledger import (
    Entry,
    Key,
    Ledger,
    Line,
    Path,
    Total,
    line_of,
    module_of,
    once_per_site,
    op_of,
)
from torchtally.memory import Category, parameters
from torchtally.memory.workspace import KINDS, Trust
from torchtally.report.document import Document, rows_of
from torchtally.table import Table
from torchtally.trace import Placeholder
from torchtally.views.bottlenecks import dominant_bounds
from torchtally.views.modules import with_children
from torchtally.views.step_time import calibrated_share
from torchtally.views.summary import judge, shortage_of
from torchtally.views.throughput import Batch, Throughput, throughput
from torchtally.views.utilisation import Utilisation, utilisations


def ledger_document(ledger: Ledger) -> Document:
    """All of a ledger but its single operators."""
    trace = ledger.trace
    return {
        "script": trace.script,
        "chip": trace.chip,
        "torch_version": trace.torch_version,
        "steps": len(trace.step_ends),
        "per": ledger.period,
        "convention": {"attention": str(ledger.convention), "text": ledger.convention.description},
        "ending": {"kind": trace.ending.kind, "message": trace.ending.message},
        "parameters": parameters(trace),
        "flops": _flops(ledger.total),
        "bytes": _bytes(ledger.total),
        "memory": _memory(ledger),
        "time": _time(ledger),
        "utilisation": [_utilisation(utilisation) for utilisation in utilisations(ledger)],
        "throughput": _throughput(throughput(ledger)),
        "lines": _lines(ledger),
        "modules": _modules(ledger),
        "ops": _ops(ledger),
        "coverage": _coverage(ledger),
        "placeholders": [_placeholder(placeholder) for placeholder in trace.placeholders],
        "notes": [{"text": note.text, "count": note.count} for note in trace.notes],
        "facts": trace.facts,
    }


def table_document(table: Table, ledger: Ledger) -> Document:
    """One view: each row by its columns' names."""
    names = [column.name for column in table.columns]
    return {
        "script": ledger.trace.script,
        "chip": ledger.trace.chip,
        "per": ledger.period,
        "convention": {"attention": str(ledger.convention), "text": ledger.convention.description},
        "title": table.title,
        "note": table.note,
        "columns": [{"name": column.name, "unit": str(column.unit)} for column in table.columns],
        "rows": rows_of(table),
        "rows_left_out": table.left_out,
        "totals": dict(zip(names, table.totals, strict=True)),
    }


def chips_document(chips: Sequence[Chip]) -> Document:
    """The hardware table. A number whose source is not the chip's own is named in `sources`."""
    return {"chips": [_chip(chip) for chip in chips]}


def _chip(chip: Chip) -> Document:
    """One row of the table: all that it says. What no source gives is null."""
    return {
        "name": chip.name,
        "aliases": list(chip.aliases),
        "driver_names": list(chip.driver_names),
        "vendor": chip.vendor,
        "architecture": chip.architecture,
        "compute_capability": chip.compute_capability,
        "multiprocessors": chip.multiprocessors,
        "boost_clock_hz": chip.boost_clock_hz,
        "tensor_clock_hz": chip.tensor_clock_hz,
        "l2_cache_bytes": chip.l2_cache_bytes,
        "memory_bytes": chip.memory_bytes,
        "is_memory_estimated": chip.is_memory_estimated,
        "memory_label_bytes": chip.memory_label_bytes,
        "program_memory_bytes": chip.program_memory_bytes,
        "memory_type": chip.memory_type,
        "memory_bandwidth_bytes_per_s": chip.memory_bandwidth_bytes_per_s,
        "achieved_bandwidth_bytes_per_s": chip.achieved_bandwidth_bytes_per_s,
        "dense_peaks_flop_per_s": {dtype: peak.flop_per_s for dtype, peak in chip.peaks.items()},
        "peaks": {dtype: asdict(peak) for dtype, peak in chip.peaks.items()},
        "link": None if chip.link is None else asdict(chip.link),
        "host_link": None if chip.host_link is None else asdict(chip.host_link),
        "node": None if chip.node is None else asdict(chip.node),
        "tdp_watts": chip.tdp_watts,
        "usd_per_hour": chip.price.usd_per_hour if chip.price else None,
        "price_source": chip.price.source if chip.price else None,
        "price_as_of": chip.price.as_of if chip.price else None,
        "price_note": chip.price.note if chip.price else None,
        "source": chip.source,
        "sources": dict(chip.sources),
        "note": chip.note,
    }


def changes_document(results: Sequence[ChangeResult]) -> list[Document]:
    """Changes that were tried after a run that did not fit, each by a run of its own."""
    return [
        {
            "change": result.change.text,
            "what_ifs": list(result.change.what_ifs),
            "allocator_settings": result.change.settings,
            "arguments": None if result.change.arguments is None else list(result.change.arguments),
            "peak_reserved_bytes": result.peak_reserved_bytes,
            "saved_bytes": result.saved_bytes,
            "fits": result.fits,
        }
        for result in results
    ]


def _largest_first(totals: dict[Key, Total]) -> list[tuple[Key, Total]]:
    """By time where there is any, FLOPs, bytes."""

    def order(pair: tuple[Key, Total]) -> tuple[float, int, int, str]:
        key, total = pair
        return (-total.seconds, -total.flops, -total.bytes, str(key))

    return sorted(totals.items(), key=order)


def _flops(total: Total) -> Document:
    return {
        "forward": total.flops_forward,
        "backward": total.flops_backward,
        "recompute": total.flops_recompute,
        "optimizer": total.flops_optimizer,
        "total": total.flops,
        "matmul": total.flops_matmul,
    }


def _bytes(total: Total) -> Document:
    return {"bytes_read": total.bytes_read, "bytes_written": total.bytes_written}


def _held(total: Total) -> Document:
    return {"bytes_saved": total.bytes_saved, "bytes_allocated": total.bytes_allocated}


def _by_phase(total: Total) -> Document:
    return {
        "flops_forward": total.flops_forward,
        "flops_backward": total.flops_backward,
        "flops_recompute": total.flops_recompute,
        "flops_optimizer": total.flops_optimizer,
    }


Timing = Callable[[Key, Total], Document]
"""Of a row: its time and what bounds it. Null without times, the bound also of what takes none."""


def _timing(ledger: Ledger, key: Callable[[Entry], Key]) -> Timing[Key]:
    if ledger.roofline is None:
        return lambda group, total: {"seconds": None, "kernel_s": None, "bound": None}
    limits = dominant_bounds(ledger, key)
    return lambda group, total: {
        "seconds": total.seconds,
        "kernel_s": total.kernel_s,
        "bound": str(limits[group]) if group in limits else None,
    }


def _time(ledger: Ledger) -> Document | None:
    """Of the steady-state step; null where the chip's speed is not known."""
    roofline, total = ledger.roofline, ledger.total
    if roofline is None:
        return None
    return {
        "chip": roofline.chip.name,
        "step_s": ledger.step_s,
        "kernel_s": total.kernel_s,
        "by_bound": {
            str(bound): {
                "seconds": total.seconds,
                "kernel_s": total.kernel_s,
                "count": total.count,
                "flops": total.flops,
                **_bytes(total),
            }
            for bound, total in _largest_first(ledger.by_bound())
        },
        "calibrated": _calibration(ledger),
        "untimed": [
            {"op": untimed.op, "count": untimed.count, "reason": untimed.reason}
            for untimed in ledger.untimed
        ],
    }


def _calibration(ledger: Ledger) -> Document | None:
    """What the times were corrected by; null for those from the data sheet alone."""
    calibration = None if ledger.roofline is None else ledger.roofline.calibration
    if calibration is None:
        return None
    return {
        "device": calibration.device,
        "date": calibration.date,
        "torch_version": calibration.torch_version,
        "share_of_kernel_s": calibrated_share(ledger),
    }


def _utilisation(utilisation: Utilisation) -> Document:
    """MBU is in bytes, all else in FLOPs."""
    unit = "bytes" if utilisation.is_bytes else "flops"
    return {
        "key": utilisation.key,
        "name": utilisation.name,
        "convention": utilisation.convention,
        "unit": unit,
        "amount": utilisation.amount,
        "per_s": utilisation.per_s,
        "peak_per_s": utilisation.peak_per_s,
        "peak": utilisation.of,
        "fraction": utilisation.fraction,
    }


def _throughput(rates: Throughput | None) -> Document | None:
    if rates is None:
        return None
    return {
        "steps_per_s": rates.steps_per_s,
        "tokens_per_s": rates.tokens_per_s,
        "samples_per_s": rates.samples_per_s,
        "tokens": _batch(rates.tokens),
        "samples": _batch(rates.samples),
    }


def _batch(batch: Batch | None) -> Document | None:
    """How many there are in a step, and the operators that tell."""
    if batch is None:
        return None
    line = batch.line
    return {
        "per_step": batch.size,
        "op": batch.op,
        "file": line.file if line else None,
        "line": line.line if line else None,
    }


def _lines(ledger: Ledger) -> list[Document]:
    timing = _timing(ledger, once_per_site(line_of))
    return [
        {**_line(line, total), **timing(line, total)}
        for line, total in _largest_first(ledger.by_line())
    ]


def _ops(ledger: Ledger) -> list[Document]:
    timing = _timing(ledger, op_of)
    return [
        {
            "name": name,
            "count": total.count,
            "flops": total.flops,
            **_bytes(total),
            **timing(name, total),
        }
        for name, total in _largest_first(ledger.by_op())
    ]


def _line(line: Line | None, total: Total) -> Document:
    return {
        "file": line.file if line else None,
        "line": line.line if line else None,
        "source": line.text if line else None,
        **_by_phase(total),
        **_bytes(total),
        **_held(total),
        "count": total.count,
        "views": total.views,
        "copies": total.copies,
    }


def _modules(ledger: Ledger) -> list[Document]:
    """Every module: its own figures, and the FLOPs with the modules inside it."""
    own = ledger.by_module()
    whole = with_children(own)
    everything = {path: own.get(path, Total()) for path in whole}
    timing = _timing(ledger, once_per_site(module_of))
    is_timed = ledger.roofline is not None
    return [
        {
            "name": path.module,
            "class": path.module_class,
            "flops_with_inner": whole[path].flops,
            **_by_phase(total),
            **_bytes(total),
            **_held(total),
            "count": total.count,
            **timing(path, total),
            "seconds_with_inner": whole[path].seconds if is_timed else None,
        }
        for path, total in sorted(everything.items(), key=lambda item: _module_order(item[0]))
    ]


def _module_order(path: Path) -> list[tuple[int, int, str]]:
    """By path, numbers as numbers: "h.2" before "h.10"."""
    return [_part_order(part) for part in path.module.split(".")]


def _part_order(part: str) -> tuple[int, int, str]:
    return (1, int(part), "") if part.isdecimal() and len(part) < 10 else (0, 0, part)


def _memory(ledger: Ledger) -> Document:
    memory, verdict = ledger.memory, judge(ledger)
    return {
        "device": memory.device,
        "peak_allocated_bytes": memory.peak_bytes,
        "peak_tick": memory.peak_tick,
        "at_peak": {str(category): size for category, size in memory.at_peak},
        "peak_reserved_bytes": verdict.reserved_bytes,
        "context_bytes": verdict.context_bytes,
        "context_trust": str(Trust.ESTIMATED),
        "workspaces": _workspaces(ledger),
        "capacity_bytes": verdict.capacity_bytes,
        "fits": verdict.fits,
        "out_of_memory": _shortage(ledger),
        "refused_requests": len(ledger.trace.refusals),
    }


def _workspaces(ledger: Ledger) -> list[Document]:
    """Device memory outside of tensors at the peak, and how sure each figure is."""
    sizes: Counter[str] = Counter()
    for storage, category in ledger.memory.alive_at_peak:
        if category is Category.WORKSPACES:
            sizes[storage.name] += storage.bytes
    return [
        {
            "name": name,
            "bytes": size,
            "trust": str(KINDS[name].trust) if name in KINDS else None,
            "source": KINDS[name].source if name in KINDS else None,
        }
        for name, size in sizes.most_common()
    ]


def _shortage(ledger: Ledger) -> Document | None:
    """The request that ended the run, and what occupied the memory."""
    shortage = shortage_of(ledger)
    if shortage is None:
        return None
    refusal, line = shortage.refusal, shortage.site.line
    return {
        "requested_bytes": refusal.requested_bytes,
        "allocated_bytes": refusal.allocated_bytes,
        "reserved_bytes": refusal.reserved_bytes,
        "free_bytes": refusal.free_bytes,
        "file": line.file if line else None,
        "line": line.line if line else None,
        "source": line.text if line else None,
        "module": shortage.site.module,
        "message": refusal.message,
        "holders": rows_of(shortage.holders),
    }


def _coverage(ledger: Ledger) -> Document:
    return {
        "counted": ledger.coverage.counted,
        "free": ledger.coverage.free,
        "uncounted": [
            {"op": uncounted.op, "count": uncounted.count, "reason": uncounted.reason}
            for uncounted in ledger.coverage.uncounted
        ],
    }


def _placeholder(placeholder: Placeholder) -> Document:
    return {
        "file": placeholder.frame.file if placeholder.frame else None,
        "line": placeholder.frame.line if placeholder.frame else None,
        "source": placeholder.frame.text if placeholder.frame else None,
        "op": placeholder.op,
        "given": placeholder.given,
        "count": placeholder.count,
    }
