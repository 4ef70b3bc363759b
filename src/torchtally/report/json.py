"""The account as a document for programs. Keys are stable; a change of meaning raises the version.

FLOPs and bytes are whole numbers, seconds are not; unknown values are null. `totals`, `time`,
`utilisation`, `throughput`, `lines`, `modules`, `ops` and `coverage` are of one period, which `per`
names ("steady-state step 2"); `memory` and `run` are of the whole run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from torchtally.chips import Chip
from torchtally.chips.chip import Link, Node, Offer
from torchtally.diagnosis import diagnose
from torchtally.fit.network_advisor import TimedChange, TimedRun
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
from torchtally.memory import Category
from torchtally.memory.workspace import KINDS, Trust
from torchtally.report.document import (
    Document,
    gaps_document,
    in_words,
    pick,
    picks,
    rows_of,
    table_part,
)
from torchtally.report.effects import effect_document
from torchtally.table import Table
from torchtally.trace import Frame, HostState
from torchtally.views.bottlenecks import dominant_bounds
from torchtally.views.chips import origins_of
from torchtally.views.columns import largest_first
from torchtally.views.generation import GenerationFigures, generation_figures
from torchtally.views.hosts import HostTime, slow_host
from torchtally.views.modules import with_children
from torchtally.views.odd_sizes import odd_sizes
from torchtally.views.parameters import ModelParameters, parameters_of
from torchtally.views.script_work import script_work
from torchtally.views.step_time import calibrated_share
from torchtally.views.steps import RunShare, run_shares, unlike
from torchtally.views.summary import caveats_of, judge, shortage_of
from torchtally.views.throughput import Batch, Throughput, throughput
from torchtally.views.time_range import TimeRange, time_range
from torchtally.views.utilisation import Utilisation, utilisations

FLOPS = (
    "flops_forward",
    "flops_backward",
    "flops_recompute",
    "flops_optimizer",
    "flops_evaluation",
)
MOVED = ("bytes_read", "bytes_written")
HELD = ("bytes_saved", "bytes_allocated")
"""Attributes of a total, and their keys."""

CHIP = (
    "name", "aliases", "families", "driver_names", "vendor", "architecture", "compute_capability",
    "multiprocessors", "boost_clock_hz", "tensor_clock_hz", "l2_cache_bytes", "memory_bytes",
    "is_memory_estimated", "memory_label_bytes", "program_memory_bytes", "memory_type",
    "memory_bandwidth_bytes_per_s", "achieved_bandwidth_bytes_per_s",
)  # fmt: skip
"""Attributes of a chip that are numbers or texts, and their keys."""


def ledger_document(ledger: Ledger) -> Document:
    """All of a ledger but its single operators."""
    trace, work = ledger.trace, script_work(ledger)
    return {
        **pick(trace, "script", "chip", "torch_version"),
        "steps": len(trace.step_ends),
        **_period(ledger),
        "ending": pick(trace.ending, "kind", "message"),
        "run": _run(ledger),
        **_parameters(parameters_of(ledger)),
        "host_state": None
        if trace.host_state is None
        else pick(trace.host_state, *HostState.__struct_fields__),
        "diagnoses": [
            {
                **_place(diagnosis.line),
                **pick(diagnosis, "rule", "remedy", "cost_bytes"),
                "cause": in_words(diagnosis.cause),
            }
            for diagnosis in diagnose(ledger)
        ],
        "totals": pick(ledger.total, "flops", *FLOPS, "flops_matmul", *MOVED),
        "memory": _memory(ledger),
        "time": _time(ledger),
        "utilisation": [_utilisation(utilisation) for utilisation in utilisations(ledger)],
        "throughput": _throughput(throughput(ledger)),
        "generation": _generation(generation_figures(ledger)),
        "lines_below": _place(ledger.delegate),
        "lines": _lines(ledger),
        "modules": _modules(ledger),
        "ops": _ops(ledger),
        "coverage": {
            **pick(ledger.coverage, "counted", "free"),
            "uncounted": gaps_document(ledger.coverage.uncounted),
        },
        "placeholders": [
            {
                **_place(placeholder.frame),
                "operator": placeholder.op,
                **pick(placeholder, "given", "use", "count"),
            }
            for placeholder in trace.placeholders
        ],
        "caveats": list(caveats_of(ledger)),
        "notes": picks(trace.notes, "text", "count"),
        "effects": [effect_document(effect) for effect in trace.effects],
        "loading": [
            {**_place(loading.frame), **pick(loading, "workers", "batch_s")}
            for loading in trace.loading
        ],
        "script_work": work and {**_place(work.frame), **pick(work, "script_s")},
        "facts": trace.facts,
    }


def table_document(table: Table, ledger: Ledger) -> Document:
    """One view: each row by its columns' names."""
    return {
        **pick(ledger.trace, "script", "chip"),
        **_period(ledger),
        **table_part(table),
    }


def _period(ledger: Ledger) -> Document:
    """What the figures are of, and how attention counts in them."""
    convention = ledger.convention
    return {
        "per": ledger.period,
        "convention": {"attention": str(convention), "text": convention.description},
    }


def chips_document(chips: Sequence[Chip]) -> Document:
    """The hardware table. A number whose source is not the chip's own is named in `sources`."""
    return {"chips": [_chip(chip) for chip in chips]}


def _chip(chip: Chip) -> Document:
    """One row of the table: all that it says. What no source gives is null."""
    return {
        **pick(chip, *CHIP),
        "dense_peaks_flop_per_s": {dtype: peak.flop_per_s for dtype, peak in chip.peaks.items()},
        "peaks": {dtype: asdict(peak) for dtype, peak in chip.peaks.items()},
        "link": _link(chip.link),
        "host_link": _link(chip.host_link),
        "node": _node(chip.node),
        "tdp_watts": chip.tdp_watts,
        "measured_as": chip.measured_as and asdict(chip.measured_as),
        "memory_as": chip.memory_as and asdict(chip.memory_as),
        "inherited": dict(chip.inherited),
        "origins": picks(origins_of(chip), "name", "chip", "basis"),
        "usd_per_hour": chip.price.usd_per_hour if chip.price else None,
        "price_source": chip.price.source if chip.price else None,
        "price_as_of": chip.price.as_of if chip.price else None,
        "price_note": chip.price.note if chip.price else None,
        "offers": [_offer(offer) for offer in chip.price.offers] if chip.price else [],
        "source": chip.source,
        "sources": dict(chip.sources),
        "note": chip.note,
    }


def _offer(offer: Offer) -> Document:
    return {
        "usd_per_hour": offer.usd_per_hour,
        "price_source": offer.source,
        "price_as_of": offer.as_of,
        "price_note": offer.note,
    }


def _link(link: Link | None) -> Document | None:
    """Null where the chip has none, or none that is known."""
    if link is None:
        return None
    facts = asdict(link)
    return {"chip_count": facts.pop("chips"), **facts}


def _node(node: Node | None) -> Document | None:
    """Null where no machine is known."""
    if node is None:
        return None
    facts = asdict(node)
    return {"chip_count": facts.pop("gpus"), **facts, "network": _link(node.network)}


def timed_changes_document(results: Sequence[TimedChange]) -> list[Document]:
    """What a step takes with each change, in seconds; `saved_s` beside the step of this run."""
    return [pick(result, *TimedChange.__slots__) for result in results]


def unchanged_document(run: TimedRun) -> Document:
    """The run without the changes of `--what-if`."""
    return pick(run, *TimedRun.__slots__)


def changes_document(results: Sequence[ChangeResult]) -> list[Document]:
    """Changes that were tried after a run that did not fit, each by a run of its own."""
    return [
        {
            "change": result.change.text,
            "what_ifs": result.change.what_ifs,
            "allocator_settings": result.change.settings,
            "arguments": result.change.arguments,
            **pick(result, "peak_reserved_bytes", "saved_bytes", "fits"),
        }
        for result in results
    ]


def _largest_first(totals: dict[Key, Total]) -> list[tuple[Key, Total]]:
    """Rows by time where there is any, FLOPs, bytes."""
    return sorted(totals.items(), key=lambda pair: largest_first((pair[1], (str(pair[0]),))))


def _run(ledger: Ledger) -> Document:
    """All that was run, and what share of it the reported period is."""
    run = run_shares(ledger)
    return {
        **pick(run, "steps", "models"),
        "flops": run.total.flops,
        "seconds": run.total.seconds if ledger.is_timed else None,
        "reported_share": shares_document(run.reported),
        "evaluation_share": shares_document(run.evaluation),
        "was_stopped": run.was_stopped,
        "steps_differ": unlike(ledger),
    }


def shares_document(shares: RunShare) -> Document:
    return {"flops_share": shares.flops, "seconds_share": shares.seconds}


def _parameters(parameters: ModelParameters | None) -> Document:
    """Null for a period of several models."""
    return {
        "parameters": None if parameters is None else parameters.elements,
        "own_parameters": None if parameters is None else parameters.own_elements,
        "is_rank_share": parameters is not None and parameters.is_rank_share,
        "trained_parameters": None if parameters is None else parameters.trained,
    }


def _place(line: Line | Frame | None) -> Document:
    return {
        "file": line.file if line else None,
        "line": line.line if line else None,
        "source": line.text if line else None,
    }


Timing = Callable[[Key, Total], Document]
"""Of a row: its time and what bounds it. Null without times, the bound also of what takes none."""


def _timing(ledger: Ledger, key: Callable[[Entry], Key]) -> Timing[Key]:
    if not ledger.is_timed:
        return lambda group, total: {"seconds": None, "kernel_s": None, "bound": None}
    limits = dominant_bounds(ledger, key)
    return lambda group, total: {
        **pick(total, "seconds", "kernel_s"),
        "bound": str(limits[group]) if group in limits else None,
    }


def _range(time_range: TimeRange | None) -> Document:
    if time_range is None:
        return {"low_s": None, "high_s": None, "basis": None, "rates_of": []}
    rates_of = list(time_range.rates_of)
    return {**pick(time_range, "low_s", "high_s", "basis"), "rates_of": rates_of}


def _time(ledger: Ledger) -> Document | None:
    """Time of the reported period; null where the chip's speed is unknown."""
    roofline = ledger.roofline
    if roofline is None:
        return None
    return {
        "chip": roofline.chip.name,
        "step_s": ledger.step_s,
        "kernel_s": ledger.total.kernel_s,
        **_range(time_range(ledger)),
        "by_bound": {
            str(bound): pick(total, "seconds", "kernel_s", "count", "flops", *MOVED)
            for bound, total in _largest_first(ledger.by_bound())
        },
        "calibrated": _calibration(ledger),
        "slow_host": _slow_host(slow_host(ledger)),
        "untimed": gaps_document(ledger.untimed),
        "odd_sizes": [
            {**pick(odd, "size", "next_size", "saved_s"), **_place(odd.line)}
            for odd in odd_sizes(ledger)
        ],
    }


def _slow_host(host_time: HostTime | None) -> Document | None:
    return None if host_time is None else pick(host_time, "host", "issue_s", "step_s", "idle_share")


def _calibration(ledger: Ledger) -> Document | None:
    """What the times were corrected by; null for those from the data sheet alone."""
    calibration = None if ledger.roofline is None else ledger.roofline.calibration
    if calibration is None:
        return None
    return {
        **pick(calibration, "device", "date", "torch_version"),
        "calibrated_share": calibrated_share(ledger),
    }


def _utilisation(utilisation: Utilisation) -> Document:
    """MBU is in bytes, all else in FLOPs."""
    return {
        **pick(utilisation, "key", "name"),
        "basis": utilisation.convention,
        "unit": "bytes" if utilisation.is_bytes else "flops",
        **pick(utilisation, "amount", "per_s", "peak_per_s"),
        "peak": utilisation.of,
        "peak_share": utilisation.fraction,
    }


def _throughput(rates: Throughput | None) -> Document | None:
    if rates is None:
        return None
    return {
        **pick(rates, "steps_per_s", "tokens_per_s", "samples_per_s", "data_parallel_ranks"),
        "token_batch": _batch(rates.tokens),
        "sample_batch": _batch(rates.samples),
    }


def _generation(figures: GenerationFigures | None) -> Document | None:
    """Null for a run that generates no tokens. Seconds and rates are null without times."""
    if figures is None:
        return None
    attributes = (
        "count", "sequences", "prefill_tokens", "decoded", "drafts", "first_token_s", "token_s",
        "first_s", "last_s", "tokens_per_s", "cache_bytes", "cache_bytes_per_token",
    )  # fmt: skip
    phases = {"prefill": figures.prefill, "decode": figures.decode}
    used = {"prefill": figures.prefill_utilisation, "decode": figures.decode_utilisation}
    return {
        **pick(figures, *attributes),
        **{
            phase: {
                **pick(total, "count", "flops", *MOVED),
                **(pick(total, "seconds", "kernel_s") if figures.is_timed else {}),
                "utilisation": None if (figure := used[phase]) is None else _utilisation(figure),
            }
            for phase, total in phases.items()
        },
    }


def _batch(batch: Batch | None) -> Document | None:
    """How many there are in a step, and the operators that tell."""
    if batch is None:
        return None
    place = _place(batch.line)
    return {
        "per_step": batch.size,
        "operator": batch.op,
        "file": place["file"],
        "line": place["line"],
    }


def _lines(ledger: Ledger) -> list[Document]:
    timing = _timing(ledger, once_per_site(line_of))
    figures = (*FLOPS, *MOVED, *HELD, "count", "views", "copies")
    return [
        {**_place(line), **pick(total, *figures), **timing(line, total)}
        for line, total in _largest_first(ledger.by_line())
    ]


def _ops(ledger: Ledger) -> list[Document]:
    timing = _timing(ledger, op_of)
    return [
        {"operator": name, **pick(total, "count", "flops", *MOVED), **timing(name, total)}
        for name, total in _largest_first(ledger.by_op())
    ]


def _modules(ledger: Ledger) -> list[Document]:
    """Every module: its own figures, and the FLOPs with the modules inside it."""
    own = ledger.by_module()
    whole = with_children(own)
    timing = _timing(ledger, once_per_site(module_of))
    documents = []
    for path in sorted(whole, key=_module_order):
        total, with_inner = own.get(path, Total()), whole[path]
        documents.append({
            "module": path.module,
            "class": path.module_class,
            "flops_with_children": with_inner.flops,
            **pick(total, *FLOPS, *MOVED, *HELD, "count"),
            **timing(path, total),
            "seconds_with_children": with_inner.seconds if ledger.is_timed else None,
        })  # fmt: skip
    return documents


def _module_order(path: Path) -> list[tuple[int, int, str]]:
    """Order by path, numbers as numbers: "h.2" before "h.10"."""
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
        "communicators": verdict.communicators.communicators,
        "communicator_bytes": verdict.communicators.bytes,
        "communicator_trust": str(Trust.ESTIMATED),
        "workspaces": _workspaces(ledger),
        **pick(verdict, "context_low_bytes", "context_high_bytes", "trial_bytes"),
        **pick(verdict, "capacity_bytes", "fits", "claim"),
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
    refusal, site = shortage.refusal, shortage.site
    return {
        **pick(refusal, "requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes"),
        **_place(site.line),
        "module": site.module,
        "message": refusal.message,
        "holders": rows_of(shortage.holders),
    }
