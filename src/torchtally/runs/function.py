"""Trace a function on a virtual GPU."""

from collections.abc import Callable

from torchtally.chips import Chip
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.timing.targets import roofline
from torchtally.trace import Ending, Trace
from torchtally.tracer.session import Elapsed, recording
from torchtally.tracer.steps import StepsDone


def run(
    function: Callable[[], object],
    *,
    gpu: str | Chip,
    steps: int | None = None,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    elapsed: Elapsed | None = None,
) -> Trace:
    """The trace of `function` on a virtual GPU.

    Args:
        function: called once, without arguments; it may build its model inside or use one made
            before, moved to "cuda" inside.
        gpu: the chip to simulate, by any name `tally gpus` lists.
        steps: stop after so many optimizer steps; None runs to the end.
        nonzero_fraction: share of a mask taken to be true where a shape depends on values
            unknown to the simulation.
        memory_is_limited: beyond the chip's memory `function` gets torch.OutOfMemoryError; else
            memory is unlimited.
        elapsed: predicts the seconds between two ticks of the trace so far, which is what
            `torch.cuda.Event.elapsed_time` answers inside; None: by the chip's roofline.

    Whatever `function` raises is raised here. Raises UnknownChipError for an unknown GPU.
    """
    name = getattr(function, "__qualname__", repr(function))
    roofline_of_chip = Roofline(gpu) if isinstance(gpu, Chip) else roofline(gpu)
    with recording(
        roofline_of_chip.chip,
        script=name,
        steps=steps,
        nonzero_fraction=nonzero_fraction,
        memory_is_limited=memory_is_limited,
        elapsed=elapsed or Prediction(roofline_of_chip),
    ) as recording_:
        ending = Ending("exit")
        try:
            function()
        except StepsDone:
            ending = Ending("steps")
        return recording_.trace(ending)
