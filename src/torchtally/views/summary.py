"""The first thing a user wants to know about a run, on one page."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torchtally.chips import Chip, find_chip
from torchtally.diagnosis import Diagnosis, diagnose
from torchtally.ledger import Coverage, Ledger, Total, module_of
from torchtally.ledger.steps import Period
from torchtally.memory.allocator import replay
from torchtally.memory.allocator.needed import NeededMemory
from torchtally.memory.workspace import context_bytes, context_limits_bytes, is_tried, trial_bytes
from torchtally.table import Column, Table
from torchtally.trace import Effect, Ending, HostState, Note, Placeholder, Trace, World
from torchtally.trace.caveats import caveats
from torchtally.views.bounds import COLUMNS as BOUND_COLUMNS
from torchtally.views.categories import COLUMNS as CATEGORY_COLUMNS
from torchtally.views.categories import categories
from torchtally.views.columns import KERNEL, OF_LINES, OF_MODULES, OF_PHASES, SECONDS, TIMED_SHARES
from torchtally.views.communicators import NO_BUFFERS, CommunicatorBuffers, communicator_buffers
from torchtally.views.costs import COST, ENERGY, with_costs
from torchtally.views.generation import GenerationFigures, generation_figures
from torchtally.views.lines import TEXTS as LINE_TEXTS
from torchtally.views.lines import is_behind_libraries, library_lines, lines, root_of
from torchtally.views.loading import SlowLoading, slow_loading
from torchtally.views.modules import MODULES, OUTSIDE, repeated_modules
from torchtally.views.modules import TEXTS as MODULE_TEXTS
from torchtally.views.moments import moment_at, step_name
from torchtally.views.money import THOUSAND_STEPS, Bill, bill
from torchtally.views.odd_sizes import OddSize, odd_sizes
from torchtally.views.operators import phases
from torchtally.views.parameters import ModelParameters, parameters_of
from torchtally.views.peak import peak_lines
from torchtally.views.script_work import ScriptWorkOfStep, script_work
from torchtally.views.shortage import COLUMNS as HOLDER_COLUMNS
from torchtally.views.shortage import Shortage, SurvivedShortage, holders, survived_shortage
from torchtally.views.step_time import StepTime, step_time
from torchtally.views.steps import RunShares, run_shares, steps, unlike

ALLOCATOR_ERROR = 0.05
"""Of reserved bytes: the limit to which docs/accuracy.md holds the model of the allocator."""
CLOSE = 0.06
"""Of a chip's memory: what lies beyond it by less may still fit. All 10 wrong verdicts of 108
published trainings and fine-tunings lay as near (docs/accuracy.md)."""

TOP_LINES = 8
TOP_OWN_LINES = 4
"""Where libraries' lines follow."""
TOP_MODULES = 6
TOP_HOLDERS = 5
TOP_STEPS = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the run fits the chip."""

    chip: str
    device: str
    """"" when the run put nothing on any device."""
    peak_bytes: int
    """Allocated at most, as `torch.cuda.max_memory_allocated()`."""
    peak_moment: str
    """Where the peak was reached: "step 2, backward of model.py:41"."""
    reserved_bytes: int
    """In the allocator's segments at most, as `torch.cuda.max_memory_reserved()`; of a run that
    went on beyond the chip's memory, on about the smallest device that it fits.
    """
    wanted_bytes: int
    """The same, with the request at which the run ended for want of memory."""
    context_bytes: int
    """What the CUDA context takes besides, by estimate."""
    context_low_bytes: int
    context_high_bytes: int
    """The same by driver, PyTorch's build and how kernels are loaded."""
    trial_bytes: int
    """What trials of cuDNN's algorithms may take at most, where the script asks for them."""
    communicators: CommunicatorBuffers
    """What NCCL takes besides, by estimate."""
    capacity_bytes: int | None
    """None for a chip that is in no table."""
    fits: bool | None
    """By the likely figures; None where the capacity is not known."""
    claim: str
    """"fits", "close", "does not fit" or "unknown": "close" says that the error of such
    predictions decides."""

    @property
    def needed_bytes(self) -> int:
        """Bytes of the device that the run takes in all, by the likely figures."""
        return self.wanted_bytes + self.context_bytes + self.communicators.bytes

    @property
    def is_open(self) -> bool:
        """Whether the run ended at a request: what would have come after it is not known."""
        return self.wanted_bytes > self.reserved_bytes


def page_columns() -> tuple[Column, ...]:
    """Every column that a table of the page may have."""
    figures = (SECONDS, KERNEL, *OF_PHASES, *OF_LINES, *OF_MODULES)
    return (
        *(figure.column for figure in figures), *TIMED_SHARES, *BOUND_COLUMNS, *CATEGORY_COLUMNS,
        *HOLDER_COLUMNS, *LINE_TEXTS, *MODULE_TEXTS, MODULES, COST, ENERGY,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the script did outside of its GPU."""

    effects: tuple[Effect, ...]
    cwd: str
    """The directory that it was run in."""
    files: str
    files_kept_by: str
    """What denied changes of others: "kernel" or "python"; "" where nothing did, or is known."""
    """The folder of an isolated run, "dropped" or "real"."""
    network: str
    """What of it the script might use, and who enforced that."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the one-page report says, in the order it says it."""

    script: str
    caveats: tuple[str, ...]
    """Sentences on which all else rests, where the run was not the one that was asked for."""
    world: World
    verdict: Verdict
    diagnoses: tuple[Diagnosis, ...]
    time: StepTime | None
    generation: GenerationFigures | None
    """Where what is reported is one generation of tokens, or has one to train on."""
    generates: bool
    """The run generates tokens."""
    no_time: str
    """Why there is no time; "" where there is."""
    odd_sizes: tuple[OddSize, ...]
    thousand_steps: Bill
    """What as many steps take as long as this one."""
    period: Period
    """What the totals are of."""
    run: RunShares
    """What share of the run they are."""
    loading: SlowLoading | None
    script_work: ScriptWorkOfStep | None
    """Where a DataLoader does not keep up with the step."""
    host_state: HostState | None
    unlike: str
    """How the steps differ, in words; "" where they do not."""
    run_steps: Table | None
    """Every step, of a run that trains several models."""
    parameters: ModelParameters | None
    convention: str
    total: Total
    phases: Table
    categories: Table
    peak_lines: Table | None
    """Where the run does not fit but went on (--no-oom): memory at the peak by line."""
    shortage: Shortage | None
    """Where the run ended because it did not fit."""
    survived: SurvivedShortage | None
    """Where it did not fit, and the script went on."""
    lines: Table
    library_lines: Table | None
    """Where most of the work is in library code that several of the user's own lines call."""
    modules: Table | None
    coverage: Coverage
    placeholders: tuple[Placeholder, ...]
    own_root: str
    """The directory of the user's own code: places are shown from there."""
    notes: tuple[Note, ...]
    surroundings: Surroundings
    ending: Ending
    steps: int

    def with_columns(self, names: Sequence[str]) -> "Summary":
        """Its tables with these columns alone, but for tables that have none of them."""
        tables = (
            (field.name, table)
            for field in fields(self)
            if isinstance(table := getattr(self, field.name), Table)
        )
        shortage = self.shortage and replace(
            self.shortage, holders=self.shortage.holders.with_some_of(names)
        )
        chosen: dict[str, Any] = {name: table.with_some_of(names) for name, table in tables}
        return replace(self, shortage=shortage, **chosen)


def summarise(ledger: Ledger) -> Summary:
    """One page about a run."""
    trace = ledger.trace
    has_modules = any(module_of(entry) != OUTSIDE for entry in ledger.reported)
    verdict = judge(ledger)
    shortage = shortage_of(ledger)
    is_behind = ledger.delegate is None and is_behind_libraries(ledger)
    return Summary(
        script=trace.script,
        caveats=caveats_of(ledger),
        world=trace.world,
        verdict=verdict,
        diagnoses=diagnose(ledger),
        time=step_time(ledger),
        generation=generation_figures(ledger),
        generates=bool(ledger.course.generations or ledger.course.rollouts),
        no_time=why_no_time(ledger),
        odd_sizes=odd_sizes(ledger),
        thousand_steps=bill(ledger, THOUSAND_STEPS, None, None),
        period=ledger.reported_period,
        run=run_shares(ledger),
        loading=slow_loading(ledger),
        script_work=script_work(ledger),
        host_state=trace.host_state,
        unlike=unlike(ledger),
        run_steps=steps(ledger).top(TOP_STEPS) if ledger.course.experiments > 1 else None,
        parameters=parameters_of(ledger),
        convention=ledger.convention.description,
        total=ledger.total,
        phases=with_costs(phases(ledger), ledger),
        categories=categories(ledger),
        peak_lines=(None if verdict.fits or shortage else peak_lines(ledger).top(TOP_HOLDERS)),
        shortage=shortage,
        survived=survived_shortage(ledger),
        lines=with_costs(lines(ledger), ledger).top(TOP_OWN_LINES if is_behind else TOP_LINES),
        library_lines=with_costs(library_lines(ledger), ledger).top(TOP_LINES)
        if is_behind
        else None,
        modules=with_costs(repeated_modules(ledger), ledger).top(TOP_MODULES)
        if has_modules
        else None,
        coverage=ledger.coverage,
        placeholders=trace.placeholders,
        own_root=root_of(ledger.by_line()),
        notes=trace.notes,
        surroundings=surroundings_of(trace),
        ending=trace.ending,
        steps=len(trace.step_ends),
    )


def caveats_of(ledger: Ledger) -> tuple[str, ...]:
    """Sentences on which all else rests."""
    return caveats(ledger.trace.notes)


def surroundings_of(trace: Trace) -> Surroundings:
    return Surroundings(
        trace.effects,
        *(trace.facts.get(name, "") for name in ("cwd", "files", "files_kept_by", "network")),
    )


def judge(ledger: Ledger) -> Verdict:
    """Whether a run fits its chip: by what is reserved, and the CUDA context and NCCL besides."""
    memory, target = ledger.memory, target_of(ledger)
    communicators = communicator_buffers(ledger, target) if target else NO_BUFFERS
    claim = claim_on(ledger, target, communicators) if target else "unknown"
    fits, reserved_bytes = None, reserved_bytes_of(ledger)
    if target is not None:
        left_bytes = room_bytes(target) - communicators.bytes
        if claim == "does not fit" and ledger.trace.final_refusal is None:
            peaks = memory.peak_bytes, reserved_bytes
            needed = NeededMemory(ledger.trace, peaks, memory.device)
            reserved_bytes = needed.more_than(left_bytes)
        fits = claim != "does not fit" and fits_in(ledger, left_bytes)
    low_bytes, high_bytes = context_limits_bytes(target)
    return Verdict(
        chip=ledger.trace.chip,
        device=memory.device,
        peak_bytes=memory.peak_bytes,
        peak_moment=str(moment_at(ledger, memory.peak_tick) or ""),
        reserved_bytes=reserved_bytes,
        wanted_bytes=wanted_bytes_of(ledger, reserved_bytes),
        context_bytes=context_bytes(target) if target else 0,
        context_low_bytes=low_bytes,
        context_high_bytes=high_bytes,
        trial_bytes=max(map(trial_bytes, filter(is_tried, ledger.trace.calls)), default=0),
        communicators=communicators,
        capacity_bytes=None if target is None else target.total_memory_bytes,
        fits=fits,
        claim=claim,
    )


def claim_on(ledger: Ledger, chip: Chip, communicators: CommunicatorBuffers) -> str:
    """Whether the run fits a chip surely, surely not, or as the rest of the software decides.

    A run that ended for want of memory does not fit.
    """
    if ledger.trace.final_refusal is not None:
        return "does not fit"
    room = room_bytes(chip) - communicators.bytes
    if high_bytes(ledger, chip, communicators) <= chip.total_memory_bytes:
        return "fits"
    close_bytes = round(CLOSE * chip.total_memory_bytes)
    return "close" if fits_in(ledger, room + close_bytes) else "does not fit"


def high_bytes(ledger: Ledger, chip: Chip, communicators: CommunicatorBuffers) -> int:
    """What a run takes of a chip if the allocator's model errs and the context is large."""
    _, context = context_limits_bytes(chip)
    return round(reserved_bytes_of(ledger) * (1 + ALLOCATOR_ERROR)) + context + communicators.bytes


def why_no_time(ledger: Ledger) -> str:
    """Reason in words; "" for a ledger with times."""
    if ledger.roofline is not None:
        return ""
    chip_name = ledger.trace.chip
    if find_chip(chip_name) is None:
        return f"No time: {chip_name} is not in the chip table, so its speed is unknown."
    return "No time: the ledger was computed without a roofline."


def shortage_of(ledger: Ledger) -> Shortage | None:
    """The request that ran out of memory, and what occupied it."""
    refusal = ledger.trace.final_refusal
    if refusal is None:
        return None
    step = step_name(ledger, refusal.tick)
    moment = f"evaluation {step}" if step.startswith("after") else step
    site = ledger.trace.sites[refusal.site]
    line = site.line
    where = f"{posixpath.basename(line.file)}:{line.line}" if line else "no line of Python"
    return Shortage(refusal, site, f"{moment}, {where}", holders(ledger, refusal.tick))


def room_bytes(chip: Chip) -> int:
    """What the allocator can have of a chip."""
    return chip.total_memory_bytes - context_bytes(chip)


def reserved_bytes_of(ledger: Ledger) -> int:
    """Bytes in the allocator's segments at most, on the accounted device."""
    memory = ledger.memory
    mine = (
        reserved.bytes for reserved in ledger.trace.reserved if reserved.device == memory.device
    )
    return max(mine, default=memory.peak_bytes)


def wanted_bytes_of(ledger: Ledger, reserved_bytes: int) -> int:
    """What is reserved at most, and what a request that ended the run would have taken besides."""
    refusal = ledger.trace.final_refusal
    if refusal is None:
        return reserved_bytes
    return max(reserved_bytes, refusal.reserved_bytes + refusal.requested_bytes)


def fits_in(ledger: Ledger, left_bytes: int) -> bool:
    """Whether an allocator of so many bytes serves all that the run requests."""
    memory = ledger.memory
    return memory.peak_bytes <= left_bytes and (
        reserved_bytes_of(ledger) <= left_bytes
        # Cached segments can be given back: what was reserved need not have been.
        or replay(ledger.trace, device=memory.device, capacity_bytes=left_bytes).fits
    )


def target_of(ledger: Ledger) -> Chip | None:
    """The chip that the run was traced for: of the table, or the one its times are predicted for
    where that has the same name (a CPU is in no table). None where neither knows it.
    """
    timed = None if ledger.roofline is None else ledger.roofline.chip
    name = ledger.trace.chip
    return timed if timed is not None and timed.name == name else find_chip(name)
