"""Runs of the same script after a run: with changes that its collectives suggest, of several ranks;
and of a run with changes (`--what-if`) the one without them.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchtally.fit.advisor import WAIT_S, patience_s
from torchtally.ledger import Ledger, account
from torchtally.runs.children import Children, sigterm_raises
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import TraceRequest, TraceResult
from torchtally.table import Column, Table
from torchtally.trace import Trace, World
from torchtally.units import Unit
from torchtally.views.collectives import evidence_of
from torchtally.views.summary import reserved_bytes_of

if TYPE_CHECKING:
    from torchtally.options.simulation import Network, Writes
    from torchtally.tracer.script_file import Script

AS_IT_IS = "the script as it is"


@dataclass(frozen=True, slots=True)
class TimedChange:
    """A run with a change."""

    what_if: str
    step_s: float
    saved_s: float
    """Of a step, beside the unchanged run; negative where it takes longer."""
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What a step takes, and the memory that the run needs."""

    step_s: float
    peak_reserved_bytes: int
    peak_allocated_bytes: int

    @classmethod
    def of(cls, ledger: Ledger) -> "TimedRun | None":
        """None where no step is known, or no time."""
        if ledger.step_s is None:
            return None
        return cls(ledger.step_s, reserved_bytes_of(ledger), ledger.memory.peak_bytes)


class NetworkAdvisor:
    """Runs the script again with each change, and keeps what a step takes then."""

    def __init__(
        self,
        script: "Script",
        gpu: str,
        *,
        steps: int,
        run_s: float,
        what_ifs: Sequence[str] = (),
        writes: "Writes" = "isolated",
        network: "Network" = "downloads",
        world: World = World(),  # noqa: B008 (frozen)
        variables: Mapping[str, str] | None = None,
        compares: bool = False,
    ) -> None:
        self.script, self.gpu, self.steps = script, gpu, steps
        self.writes, self.network = writes, network
        self.what_ifs = tuple(what_ifs)
        """Of the run itself."""
        self.compares = compares
        """With the script as it is, where the run has changes."""
        self.world, self.variables = world, tuple((variables or {}).items())
        self.max_s = patience_s(run_s)
        self.results: list[TimedChange] = []
        self.unchanged: TimedRun | None = None
        """Of the run without its changes."""
        self.failures: list[str] = []

    def advise(self, ledger: Ledger, stream: TextIO | None) -> None:
        """Try every change that the collectives of a run suggest, one after the other."""
        if ledger.step_s is None:
            return
        tried = {what_if.partition("=")[0] for what_if in self.what_ifs}
        changes = [each.what_if for each in evidence_of(ledger)]
        changes = [change for change in changes if change.partition("=")[0] not in tried]
        if not changes:
            return
        for change, ledger_then in self._run(
            [(change, (*self.what_ifs, change)) for change in changes], ledger, stream
        ):
            run, before = TimedRun.of(ledger_then), TimedRun.of(ledger)
            if run is None or before is None:
                self.failures.append(f"{change}: it has no step")
                continue
            saved_s = before.step_s - run.step_s
            self.results.append(TimedChange(change, run.step_s, saved_s, run.peak_reserved_bytes))

    def compare(self, ledger: Ledger, stream: TextIO | None) -> None:
        """Run the script as it is, beside a run with changes."""
        if not self.compares or TimedRun.of(ledger) is None:
            return
        for _, ledger_then in self._run([(AS_IT_IS, ())], ledger, stream):
            self.unchanged = TimedRun.of(ledger_then)

    def _run(
        self, runs: Sequence[tuple[str, tuple[str, ...]]], before: Ledger, stream: TextIO | None
    ) -> Iterator[tuple[str, Ledger]]:
        """One after the other: (name, ledger) of those that came to an end."""
        with (
            tempfile.TemporaryDirectory(prefix="tally-changes-") as folder,
            sigterm_raises(),
            Children("changes", preload=PRELOAD) as children,
        ):
            for number, (name, what_ifs) in enumerate(runs):
                if stream is not None:
                    count = f"{number + 1} of {len(runs)}"
                    print(f"tally: trying changes, {count}: {name}", file=stream, flush=True)
                place = Path(folder, str(number))
                children.start(name, self._request(what_ifs, place))
                while not (ended := children.collect_ended(WAIT_S)):
                    pass
                answer = ended[0].answer(TraceResult)
                failure = (
                    f"its process ended with {ended[0].how}" if answer is None else answer.failure
                )
                if failure:
                    self.failures.append(f"{name}: {failure}")
                else:
                    yield name, account(Trace.load(place), roofline=before.roofline)

    def _request(self, what_ifs: tuple[str, ...], place: Path) -> TraceRequest:
        script = self.script
        return TraceRequest(
            script=script.target,
            arguments=script.arguments,
            is_module=script.is_module,
            text=script.text,
            gpu=self.gpu,
            steps=self.steps,
            place=os.fspath(place),
            world=self.world,
            variables=self.variables,
            max_seconds=self.max_s,
            what_ifs=what_ifs,
            writes=self.writes,
            network=self.network,
        )


def timed_table(results: Sequence[TimedChange]) -> Table:
    """What saves most first."""
    ordered = sorted(results, key=lambda result: result.step_s)
    return Table(
        title="Changes that the collectives suggest, each tried in its own run",
        columns=(
            Column("step_s", "step", Unit.SECONDS),
            Column("saved_s", "saves", Unit.SECONDS),
            Column("peak_reserved_bytes", "peak", Unit.BYTES),
            Column("what_if", "--what-if", Unit.TEXT),
        ),
        rows=tuple(
            (result.step_s, result.saved_s, result.peak_reserved_bytes, result.what_if)
            for result in ordered
        ),
    )


def comparison_table(changed: TimedRun, unchanged: TimedRun, what_ifs: Sequence[str]) -> Table:
    """Both runs, and what the changes make of a step and of memory."""
    name = " ".join(f"--what-if {what_if}" for what_if in what_ifs)
    return Table(
        title="With these changes, and without",
        columns=(
            Column("what_if", "run", Unit.TEXT),
            Column("step_s", "step", Unit.SECONDS),
            Column("peak_allocated_bytes", "allocated", Unit.BYTES),
            Column("peak_reserved_bytes", "reserved", Unit.BYTES),
        ),
        rows=tuple(
            (label, run.step_s, run.peak_allocated_bytes, run.peak_reserved_bytes)
            for label, run in ((name, changed), (AS_IT_IS, unchanged))
        ),
    )
