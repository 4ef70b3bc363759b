"""Trace a function on a virtual GPU."""

from collections.abc import Callable

from torchtally.chips import Chip, Cluster
from torchtally.isolation import Writes
from torchtally.isolation.run import isolation
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.timing.targets import cluster_of, roofline
from torchtally.trace import Ending, Trace
from torchtally.tracer.recorder import PLACEHOLDER_LIMIT
from torchtally.tracer.session import Predictor, recording, world_of
from torchtally.tracer.steps import StepLimit, StepsDone


def run(
    function: Callable[[], object],
    *,
    gpu: str | Chip,
    rank: int = 0,
    steps: int | None = None,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    placeholder_limit: int = PLACEHOLDER_LIMIT,
    writes: Writes = "isolated",
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
        files: the folder that isolated files are kept in, for the caller to look at; None: they
            are dropped afterwards. The trace lists them in either case.
        host_clock: clocks that `function` reads are the host's, not the predicted one.
        prediction: the schedule that clocks and `torch.cuda.Event`s answer from; None: by the
            chip's roofline.

    Whatever `function` raises is raised here. Raises UnknownChipError for an unknown GPU.
    """
    name = getattr(function, "__qualname__", repr(function))
    gpus = Cluster(gpu) if isinstance(gpu, Chip) else cluster_of(gpu)
    roofline_of_chip = Roofline(gpu) if isinstance(gpu, Chip) else roofline(gpus.chip.name)
    with (
        isolation(writes, files) as isolated,
        recording(
            roofline_of_chip.chip,
            script=name,
            limit=StepLimit(steps),
            nonzero_fraction=nonzero_fraction,
            memory_is_limited=memory_is_limited,
            placeholder_limit=placeholder_limit,
            prediction=prediction or Prediction(roofline_of_chip),
            host_clock=host_clock,
            written=isolated.written,
            facts=isolated.facts,
            world=world_of(gpus, rank),
        ) as recording_,
    ):
        ending = Ending("exit")
        try:
            function()
        except StepsDone:
            ending = Ending("steps")
        trace = recording_.trace(ending)
        isolated.tidy()
        return trace
