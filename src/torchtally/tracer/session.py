"""Trace a script or a function: a virtual GPU, a recorder on it, and the steps it takes."""

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torchtally.hardware import Chip, chip
from torchtally.record import Ending, Trace
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.steps import Steps, StepsDone
from torchtally.tracer.what_if import stand_ins, unused
from torchtally.virtual.kernels import Dispatch
from torchtally.virtual.session import VirtualGPU, virtual_gpu
from torchtally.virtual.stand_ins import applied


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace in the making: `trace()` is everything so far."""

    gpu: VirtualGPU
    recorder: Recorder
    script: str
    what_ifs: tuple[str, ...] = ()

    def trace(self, ending: Ending) -> Trace:
        for what_if in unused(self.what_ifs):
            self.recorder.noted(f"{what_if} changed nothing: the script has nothing of that kind")
        facts = {
            "python": platform.python_version(),
            "platform": sys.platform,
            "date": time.strftime("%Y-%m-%d"),
        }
        return self.recorder.trace(
            script=self.script,
            chip=self.gpu.chip.name,
            ending=ending,
            facts=facts,
            allocator_settings=self.gpu.mode.gpus[0].allocator.settings.text,
        )


def say_nothing(step: int) -> None:
    pass


@contextmanager
def recording(
    gpu: str | Chip,
    *,
    script: str,
    steps: int | None = None,
    said: Callable[[int], None] = say_nothing,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    what_ifs: tuple[str, ...] = (),
    dispatch: Dispatch = "cuda",
) -> Iterator[Recording]:
    """A virtual GPU that records. `said` is told of each completed step.

    `what_ifs` are changes to try, as `what_if.py` spells them.
    """
    target = gpu if isinstance(gpu, Chip) else chip(gpu)
    recorder = Recorder()
    for what_if in what_ifs:
        recorder.noted(f"the script was run as if changed: {what_if}")
    with (
        virtual_gpu(
            target,
            observer=recorder,
            nonzero_fraction=nonzero_fraction,
            memory_is_limited=memory_is_limited,
            dispatch=dispatch,
        ) as device,
        applied(stand_ins(what_ifs)),
        watched(Steps(recorder, steps, said)),
    ):
        yield Recording(device, recorder, script, what_ifs)


@contextmanager
def watched(steps: Steps) -> Iterator[None]:
    """The recorder sees modules called and optimizers made and stepped."""
    with applied([*steps.recorder.modules.stand_ins(), *steps.stand_ins()]), steps.watching():
        yield


def trace(
    function: Callable[[], object],
    *,
    gpu: str | Chip,
    steps: int | None = None,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
) -> Trace:
    """What `function` does on a GPU that is not there.

    Args:
        function: called once, without arguments; it may build its model inside or use one made
            before, moved to "cuda" inside.
        gpu: the chip to simulate, by any name `tally gpus` lists.
        steps: stop after so many optimizer steps; None runs to the end.
        nonzero_fraction: share of a mask taken to be true where a shape depends on values
            nobody has.
        memory_is_limited: beyond the chip's memory `function` gets torch.OutOfMemoryError; else
            there is no end of memory.

    Whatever `function` raises is raised here. Raises UnknownChipError for a GPU nobody knows.
    """
    name = getattr(function, "__qualname__", repr(function))
    with recording(
        gpu,
        script=name,
        steps=steps,
        nonzero_fraction=nonzero_fraction,
        memory_is_limited=memory_is_limited,
    ) as made:
        ending = Ending("exit")
        try:
            function()
        except StepsDone:
            ending = Ending("steps")
        return made.trace(ending)
