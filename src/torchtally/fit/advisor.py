"""Changes that are tried after a script ran out of memory, and may make it fit."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from torchtally.fit.changes import Change, candidates, combine
from torchtally.fit.results import ChangeResult
from torchtally.memory.workspace import context_bytes
from torchtally.runs.probes import Probes
from torchtally.runs.protocol import ProbeRequest, ProbeResult
from torchtally.trace import World

if TYPE_CHECKING:
    from torchtally.chips import Chip
    from torchtally.ledger import Ledger
    from torchtally.options.simulation import Network, Writes
    from torchtally.tracer.script_file import Script

AS_IT_IS = "with unlimited memory"
WAIT_S = 0.2
TIMES_AS_LONG = 6
LEAST_S = 60.0


def patience_s(run_s: float) -> float:
    """How long a run that tries a change may take: six times as long as the run before, and a
    minute at least.
    """
    return max(LEAST_S, TIMES_AS_LONG * run_s)


class Advisor:
    """Tries changes to a run, several at a time, and keeps what they showed."""

    def __init__(
        self,
        script: "Script",
        chip: "Chip",
        *,
        steps: int,
        run_s: float,
        writes: "Writes" = "isolated",
        network: "Network" = "downloads",
        world: World = World(),  # noqa: B008 (frozen)
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.script = script
        self.chip = chip
        self.steps = steps
        self.writes, self.network = writes, network
        self.world, self.variables = world, tuple((variables or {}).items())
        self.max_s = patience_s(run_s)
        self.capacity_bytes = chip.total_memory_bytes - context_bytes(chip)
        self.settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        self.needed_bytes = 0
        """What the unchanged run reserves on about the smallest device that it fits."""
        self.results: list[ChangeResult] = []
        self.failures: list[str] = []

    def advise(self, ledger: "Ledger", stream: TextIO | None) -> None:
        """Every single change, then as many of the best together as it takes."""
        singles = candidates(ledger, self.script.arguments)
        as_it_is = Change("", 0)
        with Probes() as runs:
            outcomes = self._try_changes(runs, (as_it_is, *singles), stream)
            base = outcomes.get(as_it_is)
            if base is None:
                return
            self.needed_bytes = base.verdicts[0].peak_reserved_bytes
            self._keep(outcomes)
            together: tuple[Change, ...] = ()
            helpful = sorted(
                (result for result in self.results if result.saved_bytes > 0),
                key=lambda result: -result.saved_bytes,
            )
            for result in helpful if not any(result.fits for result in self.results) else ():
                if any(change.kind == result.change.kind for change in together):
                    continue  # one implementation of the optimizer, one dtype
                together = (*together, result.change)
                if len(together) < 2:
                    continue
                both = combine(together, self.settings)
                self._keep(self._try_changes(runs, (both,), stream))
                if self.results[-1].fits:
                    return

    def _keep(self, outcomes: "dict[Change, ProbeResult]") -> None:
        for change, outcome in outcomes.items():
            if change.text:
                verdict = outcome.verdicts[0]
                peak_bytes = verdict.peak_reserved_bytes
                saved_bytes = self.needed_bytes - peak_bytes
                self.results.append(ChangeResult(change, peak_bytes, saved_bytes, verdict.fits))

    def _try_changes(
        self, runs: Probes, changes: tuple[Change, ...], stream: TextIO | None
    ) -> "dict[Change, ProbeResult]":
        """The outcome of a run with each change; those that failed are left out, and noted."""
        waiting, outcomes = list(changes), dict.fromkeys(changes)
        done = 0
        while waiting or runs.running:
            while waiting and len(runs.running) < (os.cpu_count() or 1):
                change = waiting.pop(0)
                runs.start(change, self._request(change))
            finished = runs.next_result(WAIT_S)
            if finished is None:
                continue
            change, outcome = finished
            done += 1
            if stream is not None:
                print(f"tally: trying changes, {done} of {len(changes)}", file=stream, flush=True)
            if outcome.failure:
                self.failures.append(f"{change.text or AS_IT_IS}: {outcome.failure}")
            else:
                outcomes[change] = outcome
        return {change: outcome for change, outcome in outcomes.items() if outcome is not None}

    def _request(self, change: Change) -> ProbeRequest:
        script = self.script
        arguments = script.arguments if change.arguments is None else change.arguments
        return ProbeRequest(
            script=script.target,
            arguments=arguments,
            is_module=script.is_module,
            text=script.text,
            gpu=self.chip.name,
            world=self.world,
            variables=self.variables,
            steps=self.steps,
            max_seconds=self.max_s,
            what_ifs=change.what_ifs,
            writes=self.writes,
            network=self.network,
            allocator_settings=change.settings or None,
            capacities=((self.capacity_bytes, self.chip.total_memory_bytes),),
        )
