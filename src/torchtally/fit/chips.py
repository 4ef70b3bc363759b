"""What fits on each of several chips, with runs shared by those that run the same operators."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.fit.argument import Argument
from torchtally.fit.extrapolate import Growth
from torchtally.fit.search import Bracket, Search, Trial, Values
from torchtally.memory.workspace import context_bytes
from torchtally.runs.probes import Probes
from torchtally.runs.protocol import CapacityVerdict, ProbeRequest, ProbeResult
from torchtally.units import parse_bytes

REDRAW_S = 0.2


@dataclass(frozen=True, slots=True)
class Margin:
    """Memory kept free: a share of the chip's, or so many bytes."""

    share: float = 0.0
    bytes: int = 0
    text: str = ""

    def of(self, chip: Chip) -> int:
        return self.bytes + int(self.share * chip.total_memory_bytes)


def parse_margin(text: str) -> Margin:
    """Margin from "3%", "0.03" or "1GiB". Raises UsageError."""
    plain = text.strip()
    number = plain.removesuffix("%").strip()
    is_percent = plain.endswith("%")
    try:
        share = float(number) / (100 if is_percent else 1)
    except ValueError:
        return Margin(bytes=parse_bytes(plain))
    if not 0 <= share < 1:
        raise UsageError(
            f"--margin {text}: expected a share of the chip's memory, as 3% or 0.03, or a size, "
            "as 1GiB."
        )
    return Margin(share=share, text=f"{share * 100:g} %")


@dataclass(frozen=True, slots=True)
class Probe:
    """One run and what became of it."""

    chip: Chip
    """The one simulated."""
    value: int
    outcome: ProbeResult


@dataclass(slots=True)
class ChipSearch:
    """One chip's search, and the runs it has seen."""

    chip: Chip
    margin_bytes: int
    context_bytes: int
    search: Search
    wanted: tuple[int, ...] = ()
    verdicts: dict[int, CapacityVerdict] = None  # type: ignore[assignment]

    def takes_margin(self, value: int) -> bool:
        """Whether a run that does not fit would without the margin that is kept."""
        verdict = self.verdicts[value]
        most_bytes = self.capacity_bytes + self.margin_bytes
        return not verdict.fits and verdict.peak_reserved_bytes <= most_bytes

    def fits_text(self, value: int) -> str:
        """Word for a run that was tried: "yes", "no" or "too close"."""
        if self.takes_margin(value):
            return "too close"
        return "yes" if self.verdicts[value].fits else "no"

    @property
    def capacity_bytes(self) -> int:
        return self.search.capacity_bytes

    @property
    def family(self) -> str:
        """Chips of one family run the same operators with the same workspaces.

        What a chip runs follows from its target: attention's kernel, cuBLAS's workspace, the
        dtypes a script finds supported.
        """
        return self.chip.target

    @property
    def bracket(self) -> Bracket | None:
        return self.search.bracket


def search_of(chip: Chip, values: Values, margin: Margin) -> ChipSearch:
    """Raises UsageError for a chip that is not a CUDA device or whose memory is all margin."""
    if chip.gcn_architecture:
        raise UsageError(
            f"{chip.name}: memory that ROCm's libraries take besides tensors is not modelled, so "
            f"what fits is unknown.\n`tally run --gpu {chip.name}` counts what tensors take."
        )
    if not chip.is_cuda:
        raise UsageError(
            f'{chip.name} is not a CUDA device: torch scripts that ask for "cuda" run on '
            "NVIDIA chips.\n`tally gpus` lists them, with their vendors."
        )
    kept_bytes, driver_bytes = margin.of(chip), context_bytes(chip)
    capacity_bytes = chip.total_memory_bytes - driver_bytes - kept_bytes
    if capacity_bytes <= 0:
        raise UsageError(f"the margin leaves no memory of {chip.name}: give a smaller --margin.")
    return ChipSearch(chip, kept_bytes, driver_bytes, Search(values, capacity_bytes), verdicts={})


class Fleet:
    """The searches of several chips. `run` makes the runs they ask for, each one once."""

    def __init__(
        self, searches: Sequence[ChipSearch], argument: Argument, request: ProbeRequest
    ) -> None:
        self.searches = searches
        self.argument = argument
        self.request = request
        self.growths: dict[Any, Growth] = {}
        self.probes: dict[tuple[str, int], Probe] = {}

    def run(
        self,
        runs: Probes,
        jobs: int,
        done: Callable[[Probe], None],
        waiting: Callable[[tuple[int, ...]], None] = lambda values: None,
    ) -> None:
        """Run until every search has its answer. `done` is called after every run."""
        while True:
            wanted = self.wanted_probes()
            running = set(runs.running)
            if not wanted and not running:
                return
            for key in wanted:
                if len(runs.running) < jobs and key not in running:
                    self.start(runs, key)
            waiting(tuple(value for _, value in runs.running))
            finished = runs.next_result(REDRAW_S)
            if finished is not None:
                family, value = finished[0]
                chip = self.of(family)[0].chip
                probe = self.probes[family, value] = Probe(chip, value, finished[1])
                self.learn(family, probe)
                done(probe)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What all answers rest on, where a run was not the one that was asked for."""
        return tuple(
            dict.fromkeys(
                caveat
                for probe in self.probes.values()
                if not probe.outcome.failure
                for caveat in probe.outcome.caveats
            )
        )

    def of(self, family: str) -> list[ChipSearch]:
        return [search for search in self.searches if search.family == family]

    def start(self, runs: Probes, key: tuple[str, int]) -> None:
        family, value = key
        chips = self.of(family)
        request = replace(
            self.request,
            arguments=self.argument.among(self.request.arguments, value),
            gpu=chips[0].chip.name,
            capacities=tuple((chip.capacity_bytes, chip.chip.total_memory_bytes) for chip in chips),
        )
        runs.start(key, request)

    def wanted_probes(self) -> list[tuple[str, int]]:
        """Probes that somebody waits for, in order, less those that were made."""
        wanted: dict[tuple[str, int], None] = {}
        for each in self.searches:
            if each.bracket is not None:
                continue
            each.wanted = tuple(number for number in each.wanted if number not in each.search.seen)
            if not each.wanted:
                each.search.hints = self.hints()
                if each.search.is_blind and wanted:
                    continue  # an earlier search is about to give it points to guess from
                self.foresee(each)
                each.wanted = each.search.values_to_try(2)
            wanted |= dict.fromkeys((each.family, value) for value in each.wanted)
        return list(wanted)

    def foresee(self, each: ChipSearch) -> None:
        """Let a search guess by the allocations of its family's two largest runs."""
        probes = sorted(
            (
                probe
                for (family, _), probe in self.probes.items()
                if family == each.family and not probe.outcome.failure
            ),
            key=lambda probe: probe.value,
        )
        if len(probes) < 2:
            return
        values = probes[-2].value, probes[-1].value
        growth = self.growths.get((each.family, values))
        if growth is None:
            growth = self.growths[each.family, values] = Growth(
                values[0],
                probes[-2].outcome.allocations,
                values[1],
                probes[-1].outcome.allocations,
                os.environ,
                is_exact=False,
            )
        each.search.foresees = partial(foresee_fit, growth, each) if growth.is_alike else None

    def hints(self) -> dict[int, int]:
        return {
            probe.value: probe.outcome.peak_reserved_bytes
            for probe in self.probes.values()
            if probe.outcome.verdicts and not probe.outcome.failure
        }

    def learn(self, family: str, probe: Probe) -> None:
        """Every chip of the family has its verdict of the run."""
        outcome = probe.outcome
        for at, each in enumerate(self.of(family)):
            if outcome.failure:
                each.search.learn(Trial(probe.value, fits=None))
            else:
                verdict = each.verdicts[probe.value] = outcome.verdicts[at]
                each.search.learn(Trial(probe.value, verdict.fits, outcome.peak_reserved_bytes))


def foresee_fit(growth: Growth, each: ChipSearch, value: int) -> bool:
    """Whether a value would fit by linear extrapolation: a guess that a run then checks."""
    return growth.peaks_at(value, each.capacity_bytes, each.chip).fits
