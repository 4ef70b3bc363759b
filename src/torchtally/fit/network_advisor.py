"""After a run as one of several ranks: try the changes that its collectives suggest."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchtally.ledger import Ledger, account
from torchtally.runs.children import Children, EndedChild, sigterm_raises
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import TraceRequest, TraceResult
from torchtally.table import Column, Table
from torchtally.trace import Trace, World
from torchtally.units import Unit
from torchtally.views.collectives import evidence_of
from torchtally.views.summary import reserved_bytes_of

if TYPE_CHECKING:
    from torchtally.isolation import Writes
    from torchtally.tracer.script_file import Script

WAIT_S = 0.2
TIMES_AS_LONG = 6
LEAST_S = 60.0
"""A run may take six times as long as the one before, and a minute at least."""


@dataclass(frozen=True, slots=True)
class TimedChange:
    """A run with a change."""

    what_if: str
    step_s: float
    saved_s: float
    """Of a step, beside the unchanged run; negative where it takes longer."""
    peak_reserved_bytes: int


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
        world: World = World(),  # noqa: B008 (frozen)
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.script, self.gpu, self.steps, self.writes = script, gpu, steps, writes
        self.what_ifs = tuple(what_ifs)
        """Of the run itself."""
        self.world, self.variables = world, tuple((variables or {}).items())
        self.max_s = max(LEAST_S, TIMES_AS_LONG * run_s)
        self.results: list[TimedChange] = []
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
        with (
            tempfile.TemporaryDirectory(prefix="tally-changes-") as folder,
            sigterm_raises(),
            Children("changes", preload=PRELOAD) as children,
        ):
            for number, change in enumerate(changes):
                if stream is not None:
                    count = f"{number + 1} of {len(changes)}"
                    print(f"tally: trying changes, {count}: {change}", file=stream, flush=True)
                place = Path(folder, str(number))
                children.start(change, self._request(change, place))
                while not (ended := children.collect_ended(WAIT_S)):
                    pass
                self._keep(change, ended[0], place, ledger)

    def _keep(self, change: str, child: EndedChild, place: Path, before: Ledger) -> None:
        answer = child.answer(TraceResult)
        failure = f"its process ended with {child.how}" if answer is None else answer.failure
        if failure:
            self.failures.append(f"{change}: {failure}")
            return
        ledger = account(Trace.load(place), roofline=before.roofline)
        step_s, before_s = ledger.step_s, before.step_s
        if step_s is None or before_s is None:
            self.failures.append(f"{change}: it has no step")
        else:
            peak_bytes = reserved_bytes_of(ledger)
            self.results.append(TimedChange(change, step_s, before_s - step_s, peak_bytes))

    def _request(self, change: str, place: Path) -> TraceRequest:
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
            what_ifs=(*self.what_ifs, change),
            writes=self.writes,
        )


def timed_table(results: Sequence[TimedChange]) -> Table:
    """What saves most first."""
    ordered = sorted(results, key=lambda result: result.step_s)
    return Table(
        title="Changes that the collectives suggest, each tried by a run of its own",
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
