"""What a run on a simulated GPU is asked, by a command, a function, a cell, a test or a probe."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torchtally.chips import Chip, Cluster
from torchtally.isolation.run import Isolation, isolation
from torchtally.options.simulation import SimulationOptions
from torchtally.trace import World
from torchtally.tracer.session import Predictor, Recording, ignore_step, recording
from torchtally.tracer.steps import StepLimit, ignore
from torchtally.virtual.aliases import ReadOnce
from torchtally.virtual.distributed.exchange import Exchange
from torchtally.virtual.session import check_inactive


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(SimulationOptions):
    """What was asked of a run. Nothing of it changes while the script runs."""

    script: str
    """What the trace calls it."""
    gpus: Cluster
    world: World = field(default_factory=World)
    limit: StepLimit = field(default_factory=StepLimit)
    """When the script is stopped."""
    what_ifs: tuple[str, ...] = ()
    files: str | None = None
    """The folder of isolated files; None: they are dropped afterwards."""
    files_shown: str = ""
    """What the user calls it."""
    temporary_in: str | None = None
    """Where temporary files are; None: in the system's folder."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, besides those of its rank."""
    restricts: bool = False
    """Whether the process is tally's own: the kernel keeps it from other files for good."""

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
