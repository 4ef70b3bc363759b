"""The runs of a search, in warm workers, and the figures of each."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from torchtally.chips import Chip, Cluster
from torchtally.chips.power import mean_power_watts
from torchtally.errors import ScriptError
from torchtally.fit.advisor import WAIT_S
from torchtally.fit.threshold import STEP, Goal, point_of
from torchtally.ledger import Ledger, account
from torchtally.memory.workspace import context_bytes
from torchtally.runs.children import Children, EndedChild, sigterm_raises
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import TraceRequest, TraceResult
from torchtally.timing.targets import roofline
from torchtally.trace import Trace
from torchtally.tune.knobs import ON, Knob, KnobKind, Settings
from torchtally.tune.points import SAMPLES, STEPS, TOKENS, TunePoint
from torchtally.tune.search import GpuGroup, TuneCandidate, TuneSearch
from torchtally.units import format_bytes
from torchtally.views.money import busy_share, tokens_of_step, why_no_time
from torchtally.views.ranks import data_parallel_ranks
from torchtally.views.throughput import samples_of
from torchtally.views.utilisation import model_flops, peak_of
from torchtally.work.convention import Convention

if TYPE_CHECKING:
    from torchtally.fixes.fix import Fix
    from torchtally.fixes.patch import Patch, ScriptSources

CACHES = 2
"""Times the L2 cache: what a kernel may find in it, and what it may leave there unwritten."""


@dataclass(frozen=True, slots=True)
class TuneRuns:
    """How the script is run."""

    requests: Mapping[str, TraceRequest]
    """By GPUs: its first settings' run, without the file of its trace."""
    fixes: "Mapping[str, Fix]"
    """By name, those that are knobs."""
    folder: str
    jobs: int


Told = Callable[[Sequence[TunePoint]], None]
"""Called after each run, with what it showed: first of the GPUs that were simulated."""


def run_search(
    search: TuneSearch, runs: TuneRuns, sources: "ScriptSources | None", told: Told
) -> None:
    """Run until the search has no more to try, then whatever of the front was computed alone."""
    groups = {group.simulated: group for group in search.groups}
    with _Workers(search, runs, sources) as workers:
        while True:
            for candidate in search.next_candidates(runs.jobs - workers.count):
                workers.start(candidate)
            if not workers.count:
                break
            for candidate, points in workers.ended(groups):
                search.learn(candidate, points)
                told(points)
        while candidates := search.unproved():
            for candidate in candidates:
                workers.start(candidate)
            while workers.count:
                for _, points in workers.ended({}):
                    search.prove(points[0])
                    told(points)


def first_sources(search: TuneSearch, runs: TuneRuns, gpus: str) -> "ScriptSources":
    """The sources that fixes change, by a run of the first settings. Raises ScriptError where it
    fails.
    """
    candidate = TuneCandidate(tuple(knob.first for knob in search.knobs), gpus)
    request = runs.requests[gpus]
    with _Workers(search, runs, None) as workers:
        workers.start(candidate)
        while not (ended := workers.children.collect_ended(WAIT_S)):
            pass
        failure = _failure(ended[0])
        if failure:
            raise ScriptError(
                f"{request.script} fails on {gpus} with the first settings: {failure}"
            )
        ledger = account(Trace.load(workers.place_of(candidate)))
    from torchtally.fixes.trial import TrialRequest, sources_of

    trial = TrialRequest(request.script, request.arguments, gpus, request.steps, runs.folder)
    return sources_of(trial, ledger)


class _Workers:
    """A context of warm children, each with a candidate."""

    def __init__(self, search: TuneSearch, runs: TuneRuns, sources: "ScriptSources | None") -> None:
        self._search, self._runs, self._sources = search, runs, sources
        self._stack = ExitStack()
        self._mirrors: dict[TuneCandidate, ExitStack] = {}
        self._unpatched: dict[TuneCandidate, str] = {}

    def __enter__(self) -> "_Workers":
        place = tempfile.TemporaryDirectory(prefix="tally-tune-")
        self._folder = Path(self._stack.enter_context(place))
        self._stack.enter_context(sigterm_raises())
        self.children = self._stack.enter_context(Children("tune", preload=PRELOAD))
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._mirrors.values():
            self._stack.push(each)
        self._stack.close()

    @property
    def count(self) -> int:
        return len(self.children.running) + len(self._unpatched)

    def place_of(self, candidate: TuneCandidate) -> Path:
        """The file of its trace."""
        return self._folder / str(abs(hash(candidate)))

    def start(self, candidate: TuneCandidate) -> None:
        request = self._runs.requests[candidate.gpus]
        knobs, settings = self._search.knobs, candidate.settings
        variables = {}
        for knob, value in zip(knobs, settings, strict=True):
            if knob.kind is KnobKind.ARGUMENT:
                request = replace(request, arguments=knob.argument.among(request.arguments, value))
            elif knob.kind is KnobKind.VARIABLE and value:
                name, _, text = knob.argument.with_value(value)[0].partition("=")
                variables[name] = text
        request = replace(request, place=os.fspath(self.place_of(candidate)))
        stack = self._mirrors[candidate] = ExitStack()
        fixes = fixes_of(knobs, settings, self._runs.fixes)
        if fixes:
            from torchtally.fixes.fix import NotApplicableError
            from torchtally.fixes.patch import mirror, patch

            assert self._sources is not None
            try:
                changed = patch(self._sources, fixes)
            except NotApplicableError as error:
                self._unpatched[candidate] = f"the fixes do not apply together: {error}"
                return
            script = stack.enter_context(mirror(self._sources, changed.changed))
            request = replace(request, script=script)
        self.children.start(
            candidate, request, environment=os.environ | variables if variables else None
        )

    def ended(
        self, groups: Mapping[str, GpuGroup]
    ) -> Iterator[tuple[TuneCandidate, list[TunePoint]]]:
        """Candidates whose runs have ended, with points: of the GPUs that were simulated, then of
        the others of their group. Waits for one.
        """
        unpatched, self._unpatched = self._unpatched, {}
        for each, text in unpatched.items():
            yield each, [_failed(each, each.gpus, text)]
        for ended in self.children.collect_ended(WAIT_S):
            candidate: TuneCandidate = ended.key
            self._mirrors.pop(candidate).close()
            place = self.place_of(candidate)
            failure = _failure(ended)
            ledger = None
            if place.exists() and not failure:
                trace = Trace.load(place)
                ledger = account(trace, roofline=roofline(self._chip(candidate.gpus).name))
            place.unlink(missing_ok=True)
            members = groups.get(candidate.gpus)
            names = (candidate.gpus,) if members is None else members.gpus
            yield (
                candidate,
                [
                    _failed(candidate, gpus, failure)
                    if ledger is None
                    else self._point(candidate, gpus, ledger)
                    for gpus in (names if ledger is not None else names[:1])
                ],
            )

    def _chip(self, gpus: str) -> Chip:
        return self._cluster(gpus).chip

    def _cluster(self, gpus: str) -> Cluster:
        return next(
            cluster
            for group in self._search.groups
            for name, cluster in zip(group.gpus, group.clusters, strict=True)
            if name == gpus
        )

    def _point(self, candidate: TuneCandidate, gpus: str, ledger: Ledger) -> TunePoint:
        """A run's point on these GPUs, which may be others than were simulated."""
        chip, allocated_bytes = self._chip(gpus), ledger.memory.peak_bytes
        room_bytes = chip.total_memory_bytes - context_bytes(chip)
        if gpus != candidate.gpus:
            if allocated_bytes > room_bytes:
                sizes = f"{format_bytes(allocated_bytes)} of {format_bytes(room_bytes)}"
                return _failed(candidate, gpus, f"its tensors take {sizes}")
            ledger = ledger.with_predicted_times(roofline(chip.name))
        failure = why_not(ledger)
        if failure:
            return _failed(candidate, gpus, failure)
        figures = point_of(0, ledger, Goal(compute_bound=STEP))
        count, length_in = batch_of(ledger)
        size = ledger.trace.world.size
        rate = self._search.rates[gpus]
        return TunePoint(
            gpus=gpus,
            settings=candidate.settings,
            ran_on=candidate.gpus,
            step_s=figures.step_s,
            batch=count,
            length_in=length_in,
            peak_reserved_bytes=min(figures.peak_reserved_bytes or 0, room_bytes),
            peak_allocated_bytes=allocated_bytes,
            mfu=figures.mfu,
            compute_share=figures.compute_share,
            gpus_usd_per_hour=rate,
            watts=(
                None
                if chip.tdp_watts is None
                else size * mean_power_watts(chip.tdp_watts, busy_share(ledger))
            ),
            floor_s={
                name: floor_s(ledger, cluster.chip)
                for group in self._search.groups
                for name, cluster in zip(group.gpus, group.clusters, strict=True)
                if cluster.count == self._cluster(gpus).count
            },
        )


def fixes_of(
    knobs: Sequence[Knob], settings: Settings, fixes: "Mapping[str, Fix]"
) -> "tuple[Fix, ...]":
    """The fixes that settings apply, in the order of the knobs."""
    return tuple(
        fixes[knob.argument.name]
        for knob, value in zip(knobs, settings, strict=True)
        if knob.kind is KnobKind.FIX and value == ON
    )


def changes_something(sources: "ScriptSources", fix: "Fix") -> bool:
    """Whether a fix finds anything to do."""
    from torchtally.fixes.fix import NotApplicableError
    from torchtally.fixes.patch import patch

    try:
        patch(sources, (fix,))
    except NotApplicableError:
        return False
    return True


def patch_of(
    sources: "ScriptSources | None",
    knobs: Sequence[Knob],
    settings: Settings,
    fixes: "Mapping[str, Fix]",
) -> "Patch | None":
    """The patch that settings ask for; None where they change no source."""
    from torchtally.fixes.patch import patch

    applied = fixes_of(knobs, settings, fixes)
    return patch(sources, applied) if sources is not None and applied else None


def why_not(ledger: Ledger) -> str:
    """Why a run's figures are not known; "" where they are."""
    if not ledger.trace.step_ends:
        return "it ends before an optimizer's step"
    if failure := why_no_time(ledger):
        return failure
    if ledger.trace.world.size > 1 and data_parallel_ranks(ledger) is None:
        return "what the ranks do together is unknown: no gradients are reduced among them"
    return ""


def batch_of(ledger: Ledger) -> tuple[int, str]:
    """(amount, of what) that a step of all ranks works on."""
    if tokens := tokens_of_step(ledger):
        return tokens, TOKENS
    samples = samples_of(ledger)
    if samples is not None:
        return samples.size * (data_parallel_ranks(ledger) or 1), SAMPLES
    return 1, STEPS


def floor_s(ledger: Ledger, chip: Chip) -> float:
    """Seconds that the step takes at least on a chip: its products at the peak, or what all kernels
    move beyond the cache at the full bandwidth.
    """
    peak = peak_of(ledger, chip)
    flops = model_flops(ledger.reported, Convention.CAUSAL) * peak.counted_share
    products_s = flops / peak.flop_per_s if peak.flop_per_s else 0.0
    cached_bytes = CACHES * (chip.l2_cache_bytes or chip.memory_bytes)
    moved_bytes = sum(max(entry.cost.bytes - cached_bytes, 0) for entry in ledger.reported)
    return max(products_s, moved_bytes / chip.memory_bandwidth_bytes_per_s)


def _failure(ended: EndedChild) -> str:
    answer = ended.answer(TraceResult)
    if answer is None:
        return f"its process ended with {ended.how}"
    # Of an OutOfMemoryError the request, without the sizes of all that is there.
    return answer.failure.splitlines()[0].partition(" GPU 0 ")[0] if answer.failure else ""


def _failed(candidate: TuneCandidate, gpus: str, failure: str) -> TunePoint:
    return TunePoint(gpus, candidate.settings, ran_on=candidate.gpus, failure=failure)
