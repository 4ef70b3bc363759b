"""Tracing: a virtual GPU, its recorder, and the count of training steps."""

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchtally.chips import Chip, chip
from torchtally.trace import Ending, Trace
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.steps import Steps
from torchtally.tracer.what_if import stand_ins, unused_changes
from torchtally.virtual.kernels import Dispatch
from torchtally.virtual.session import VirtualGPU, virtual_gpu
from torchtally.virtual.stand_ins import apply

Elapsed = Callable[[Trace, int, int], float]
"""Predicted seconds between two ticks of a trace, the later one last."""


@dataclass(slots=True)
class Predictions:
    """The stopwatch of a run: seconds between two ticks, predicted from the trace so far."""

    elapsed: Elapsed
    trace_so_far: Callable[[], Trace]
    recorder: Recorder
    _latest: tuple[tuple[int, int], Trace] | None = field(default=None, init=False)

    def __call__(self, first_tick: int, end_tick: int) -> float:
        """The trace so far is built here, once for as long as nothing more runs."""
        now = self.recorder.moment
        if self._latest is None or self._latest[0] != now:
            self._latest = None  # freed before the new one is built
            self._latest = (now, self.trace_so_far())
        return self.elapsed(self._latest[1], first_tick, end_tick)


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that is being traced: `trace()` returns everything so far."""

    gpu: VirtualGPU
    recorder: Recorder
    script: str
    what_ifs: tuple[str, ...] = ()

    def trace(self, ending: Ending) -> Trace:
        """The whole, at the end of the run."""
        for what_if in unused_changes(self.what_ifs):
            self.recorder.note(f"{what_if} changed nothing: the script has nothing of that kind")
        return self._trace(ending)

    def trace_so_far(self) -> Trace:
        return self._trace(Ending("running"))

    def _trace(self, ending: Ending) -> Trace:
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


def ignore_step(step: int) -> None:
    pass


@contextmanager
def recording(
    gpu: str | Chip,
    *,
    script: str,
    steps: int | None = None,
    on_step: Callable[[int], None] = ignore_step,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    what_ifs: tuple[str, ...] = (),
    dispatch: Dispatch = "cuda",
    elapsed: Elapsed | None = None,
) -> Iterator[Recording]:
    """A virtual GPU that records. `on_step` is called with the number of each completed step.

    `what_ifs` are changes to try, as `what_if.py` spells them. `elapsed` predicts times from the
    trace so far, for the script's own `torch.cuda.Event`s; without it those raise.
    """
    target = gpu if isinstance(gpu, Chip) else chip(gpu)
    recorder = Recorder()

    def trace_so_far() -> Trace:
        return record.trace_so_far()

    for what_if in what_ifs:
        recorder.note(f"the script was run as if changed: {what_if}")
    with (
        virtual_gpu(
            target,
            observer=recorder,
            nonzero_fraction=nonzero_fraction,
            memory_is_limited=memory_is_limited,
            dispatch=dispatch,
            stopwatch=None if elapsed is None else Predictions(elapsed, trace_so_far, recorder),
        ) as device,
        apply(stand_ins(what_ifs)),
        watch(Steps(recorder, steps, on_step)),
    ):
        record = Recording(device, recorder, script, what_ifs)
        yield record


@contextmanager
def watch(steps: Steps) -> Iterator[None]:
    """Have the recorder see calls of modules, and optimizers constructed and stepped."""
    with apply([*steps.recorder.modules.stand_ins(), *steps.stand_ins()]), steps.watch():
        yield
