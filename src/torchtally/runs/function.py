"""Trace a function on a virtual GPU."""

from collections.abc import Callable
from dataclasses import dataclass

from torchtally.chips import Chip, Cluster
from torchtally.options.simulation import Network, Writes
from torchtally.runs.request import RunRequest, simulation
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.timing.targets import cluster_of, roofline
from torchtally.trace import Ending, Trace
from torchtally.tracer import tracebacks
from torchtally.tracer.placeholder_reads import PLACEHOLDER_LIMIT
from torchtally.tracer.script import exit_message
from torchtally.tracer.session import Predictor, Recording, ignore_step, world_of
from torchtally.tracer.steps import StepLimit, StepsDone
from torchtally.tracer.stopper import INTERRUPTED
from torchtally.virtual.session import is_simulated


def ignore_recording(recording: Recording) -> None:
    """Nothing is to be done before the run."""


def is_within_run() -> bool:
    """Whether this code is being run already: a run within a run is refused."""
    return is_simulated()


def run(
    function: Callable[[], object],
    *,
    gpu: str | Chip | Cluster,
    rank: int = 0,
    steps: int | None = None,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    placeholder_limit: int = PLACEHOLDER_LIMIT,
    writes: Writes = "isolated",
    network: Network = "downloads",
    files: str | None = None,
    host_clock: bool = False,
    prediction: Predictor | None = None,
) -> Trace:
    """The trace of `function` on a virtual GPU.

    Args:
        function: called once, without arguments; it may build its model inside or use one made
            before, moved to "cuda" inside.
        gpu: the chip to simulate, by any name `tally gpus` lists; of a cluster with the number of
            GPUs, or of nodes and of GPUs in each: "8xH100-SXM", "16x8xH100-SXM".
        rank: of several GPUs, the one that `function` runs as, counted node by node. It finds the
            environment that torchrun sets.
        steps: stop after so many optimizer steps; None runs to the end.
        nonzero_fraction: share of a mask taken to be true where a shape depends on values
            unknown to the simulation.
        memory_is_limited: beyond the chip's memory `function` gets torch.OutOfMemoryError; else
            memory is unlimited.
        placeholder_limit: placeholders that one condition may read between two optimizer steps;
            a loop that waits for more raises EndlessLoopError.
        writes: "isolated": what `function` writes does not change any file that exists, since it
            would write placeholders; "real": it writes as it would alone. Threads that run already
            write for real.
        network: "downloads": what would publish something is not sent; "off": connections of
            Python's sockets are refused; "on": as alone.
        files: the folder that isolated files are kept in, for the caller to look at; None: they
            are dropped afterwards. The trace lists them in either case.
        host_clock: clocks that `function` reads are the host's, not the predicted one.
        prediction: the schedule that clocks and `torch.cuda.Event`s answer from; None: by the
            chip's roofline.

    Whatever `function` raises is raised here. Raises UnknownChipError for an unknown GPU.
    """
    gpus, by_roofline = target_of(gpu)
    request = RunRequest(
        script=getattr(function, "__qualname__", repr(function)),
        gpus=gpus,
        world=world_of(gpus, rank),
        limit=StepLimit(steps),
        nonzero_fraction=nonzero_fraction,
        memory_is_limited=memory_is_limited,
        placeholder_limit=placeholder_limit,
        writes=writes,
        network=network,
        files=files,
        host_clock=host_clock,
    )
    done = run_to_end(function, request, prediction=prediction or Prediction(by_roofline))
    if done.error is not None:
        raise done.error
    return done.trace


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A function's run, however it ended."""

    trace: Trace
    error: BaseException | None
    """What the function raised; None where it came to its end, or its steps were done."""


def target_of(gpu: str | Chip | Cluster) -> tuple[Cluster, Roofline]:
    """The GPUs of a name, or one of this chip, and how long operators take on each."""
    if isinstance(gpu, Chip):
        return Cluster(gpu), Roofline(gpu)
    if isinstance(gpu, Cluster):
        return gpu, Roofline(gpu.chip)
    gpus = cluster_of(gpu)
    return gpus, roofline(gpus.chip.name)


def run_to_end(
    function: Callable[[], object],
    request: RunRequest,
    *,
    prediction: Predictor,
    on_start: Callable[[Recording], None] = ignore_recording,
    on_step: Callable[[int], None] = ignore_step,
) -> EndedRun:
    """The trace of all that a function did until it ended, was stopped, or failed.

    `on_start` is called before it with the recording, `on_step` with the number of each step.
    """
    with simulation(request, prediction=prediction, on_step=on_step) as (isolated, recording):
        ending, error = Ending("exit"), None
        try:
            on_start(recording)
            function()
        except StepsDone:
            ending = Ending("steps")
        except BaseException as raised:
            ending, error = ending_by(raised), raised
        trace = recording.trace(ending)
        isolated.tidy()
        return EndedRun(trace, error)


def ending_by(error: BaseException) -> Ending:
    """How a run ended that raised an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED.ending
    if isinstance(error, SystemExit):
        return Ending("exit", exit_message(error))
    return Ending("exception", tracebacks.message_of(error))
