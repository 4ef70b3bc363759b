"""What becomes of a run that was asked for: where it runs, what it is held to, what is done."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path

    from torchtally.cli.run_options import RunOptions
    from torchtally.gates.run import RunGates
    from torchtally.runs.ranks.together import SimulatedRanks
    from torchtally.runs.request import RunRequest
    from torchtally.tracer.script_file import Script


@dataclass(slots=True)
class StartState:
    """The time before the script begins, in which Ctrl-C ends the command: also where what is
    imported then swallows the exception.
    """

    is_over: bool = False
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with suppress(ValueError):  # not in the main thread, which alone gets signals
                signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.is_interrupted = True
        raise KeyboardInterrupt

    def end(self) -> None:
        """Leave the signal to the script. Raises KeyboardInterrupt that was swallowed."""
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.is_interrupted and not self.is_over:
            raise KeyboardInterrupt
        self.is_over = True


@dataclass(slots=True)
class RunState:
    """A run of `tally run`, from its start to its report."""

    options: "RunOptions"
    request: "RunRequest"
    trace_place: str
    """Where the trace goes; absolute, since the script may change the directory. "-": stdout."""
    script: "Script"
    gates: "RunGates"
    ranks: "SimulatedRanks | None"
    """Those that run with it; None of a run of one GPU."""
    stderr: TextIO
    last_run: "Path | None" = None
    """Where the figures of the last brief run are, and this one's go."""
    started_s: float = field(default_factory=time.monotonic)
    started_in: str = field(default_factory=os.getcwd)
    """The user's directory, which the script may leave."""
    is_drawn: bool = False
    """Whether the run is drawn while it runs."""
    is_saved: bool = False
    """Whether the trace is in its file."""
