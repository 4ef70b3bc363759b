"""What a run on a simulated GPU is asked, by a command, a function, a cell, a test or a probe."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torchtally.chips import Chip, Cluster
from torchtally.isolation import Network, Writes
from torchtally.isolation.run import Isolation, isolation
from torchtally.trace import World
from torchtally.tracer.placeholder_reads import PLACEHOLDER_LIMIT
from torchtally.tracer.session import Predictor, Recording, ignore_step, recording
from torchtally.tracer.steps import StepLimit, ignore
from torchtally.virtual.aliases import ReadOnce
from torchtally.virtual.distributed.exchange import Exchange
from torchtally.virtual.session import check_inactive


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What was asked of a run. Nothing of it changes while the script runs."""

    script: str
    """What the trace calls it."""
    gpus: Cluster
    world: World = field(default_factory=World)
    limit: StepLimit = field(default_factory=StepLimit)
    """When the script is stopped."""
    nonzero_fraction: float = 1.0
    """Share of a mask taken to be true where a shape depends on unknown values."""
    memory_is_limited: bool = True
    placeholder_limit: int = PLACEHOLDER_LIMIT
    what_ifs: tuple[str, ...] = ()
    host_clock: bool = False
    writes: Writes = "isolated"
    files: str | None = None
    """The folder of isolated files; None: they are dropped afterwards."""
    files_shown: str = ""
    """What the user calls it."""
    temporary_in: str | None = None
    """Where temporary files are; None: in the system's folder."""
    network: Network = "downloads"
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, besides those of its rank."""
    restricts: bool = False
    """Whether the process is tally's own: the kernel keeps it from other files for good."""

    # What a command asks besides: of the run's end, its report and its limits.
    max_seconds: float | None = None
    output: str = ""
    """The trace's file as the user calls it."""
    trace_place: str = ""
    """Where it is; absolute, since the script may change the directory. "-": stdout."""
    json_place: str | None = None
    html_place: str | None = None
    format: str = "text"
    columns: tuple[str, ...] | None = None
    budget: str | None = None
    """The file of budgets as the user calls it."""
    is_quiet: bool = False
    """Whether neither progress nor report is printed."""
    is_watched: bool = False
    """Whether the run is to be drawn while it runs."""
    advises: bool = False
    """Whether changes are tried that may help, and are worth trying: their results are shown."""
    compares: bool = False
    """Whether the run is compared with one without its changes."""

    @property
    def target(self) -> Chip:
        """The chip of each GPU."""
        return self.gpus.chip


class Simulation(NamedTuple):
    """A run that goes on."""

    isolated: Isolation
    recording: Recording


def simulation(
    request: RunRequest,
    *,
    prediction: Predictor,
    on_step: Callable[[int], None] = ignore_step,
    on_done: Callable[[], None] = ignore,
    exchange: Exchange | None = None,
    own: Iterable[str] = (),
) -> AbstractContextManager[Simulation]:
    """Context in which "cuda" is the request's chip, what runs is recorded, and its files are
    isolated: the one way into a simulated GPU.

    `prediction` is what clocks answer from; `on_step` and `on_done` are called as by `recording`;
    `own` are folders of tally's that are written to.
    """
    check_inactive()  # before the files of a run within a run are isolated
    return ReadOnce(_simulation(request, prediction, on_step, on_done, exchange, own))


@contextmanager
def _simulation(
    request: RunRequest,
    prediction: Predictor,
    on_step: Callable[[int], None],
    on_done: Callable[[], None],
    exchange: Exchange | None,
    own: Iterable[str],
) -> Iterator[Simulation]:
    files = isolation(
        request.writes,
        request.files,
        shown=request.files_shown,
        restricts=request.restricts,
        temporary_in=request.temporary_in,
        own=own,
    )
    with (
        files as isolated,
        recording(
            request.target,
            script=request.script,
            limit=request.limit,
            on_step=on_step,
            on_done=on_done,
            nonzero_fraction=request.nonzero_fraction,
            memory_is_limited=request.memory_is_limited,
            placeholder_limit=request.placeholder_limit,
            what_ifs=request.what_ifs,
            prediction=prediction,
            host_clock=request.host_clock,
            written=isolated.written,
            facts=isolated.facts,
            world=request.world,
            variables=request.variables,
            exchange=exchange,
            network=request.network,
            is_own_process=request.restricts,
        ) as session,
    ):
        yield Simulation(isolated, session)
