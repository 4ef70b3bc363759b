"""The program of a measurement: run a script once, on a real or a simulated GPU, and measure it."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from torchtally.chips import chip
from torchtally.isolation.network import limited_network
from torchtally.isolation.run import isolation
from torchtally.runs.measure.meter import Meter
from torchtally.runs.protocol import WRITTEN, MeasureRequest
from torchtally.timing.prediction import Prediction
from torchtally.timing.targets import roofline
from torchtally.trace.measurement import Measurement
from torchtally.tracer.script import run
from torchtally.tracer.script_file import Script
from torchtally.tracer.steps import StepLimit, Steps
from torchtally.tracer.stopper import ScriptOutcome, Stopper, flush_outputs
from torchtally.virtual.session import virtual_gpu
from torchtally.virtual.stand_ins import apply


def measure(request: MeasureRequest, folder: Path, reply: Callable[[Measurement], None]) -> None:
    """Run the script, reply, and end the process. `folder` keeps what a simulated run writes."""
    script = Script(request.script, request.arguments, is_module=request.is_module)
    meter = Meter()

    def step_done(step: int) -> None:
        if not stopper.is_in_child:
            meter.step_completed(step)

    def leaving(outcome: ScriptOutcome) -> int:
        isolated.outside(answer, outcome)
        return 0

    def answer(outcome: ScriptOutcome) -> None:
        reply(meter.measurement(outcome))
        isolated.tidy()

    stopper = Stopper(leaving)
    steps = Steps(meter.roles, StepLimit(request.steps), step_done, stopper.steps_are_done)
    writes = "real" if request.gpu is None else request.writes
    with ExitStack() as stack:
        isolated = stack.enter_context(
            isolation(writes, str(folder / WRITTEN), restricts=True, temporary_in=str(folder))
        )
        if request.gpu is not None:
            stack.enter_context(
                limited_network(request.network, meter.roles.effect, is_own_process=True)
            )
            kernel_s = Prediction(roofline(request.gpu)).kernel_s
            stack.enter_context(virtual_gpu(chip(request.gpu), kernel_s=kernel_s))
        stack.enter_context(apply(steps.stand_ins()))
        stack.enter_context(steps.watch())
        meter.start()
        code = leaving(run(script, stopper))
        flush_outputs()
        os._exit(code)  # threads of the script may still run, and nothing waits for them
