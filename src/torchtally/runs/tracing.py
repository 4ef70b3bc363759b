"""The program that runs a script once on a simulated GPU, and saves its trace."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from torchtally.isolation.run import isolation
from torchtally.runs.protocol import WRITTEN, TraceRequest, TraceResult
from torchtally.runs.tracing_context import isolated_recording
from torchtally.timing.prediction import Prediction
from torchtally.timing.targets import roofline
from torchtally.tracer.script import run
from torchtally.tracer.script_file import Script
from torchtally.tracer.session import recording
from torchtally.tracer.steps import StepLimit
from torchtally.tracer.stopper import ScriptOutcome, Stopper, flush_outputs


def trace(request: TraceRequest, folder: Path, reply: Callable[[TraceResult], None]) -> None:
    """Run the script, save the trace, reply, and end the process."""
    torch.set_num_threads(1)  # others run beside it
    script = Script(
        request.script, request.arguments, is_module=request.is_module, text=request.text
    )

    def leaving(outcome: ScriptOutcome) -> int:
        record.recorder.is_stopped = True
        isolated.outside(save, outcome)
        return 0

    def save(outcome: ScriptOutcome) -> None:
        record.trace(outcome.ending).save(Path(request.place))
        reply(TraceResult(ending=outcome.ending.kind, message=outcome.ending.message))
        isolated.tidy()

    stopper = Stopper(leaving, max_seconds=request.max_seconds)
    recorded = partial(
        recording,
        request.gpu,
        script=str(script),
        limit=StepLimit(request.steps),
        on_done=stopper.steps_are_done,
        what_ifs=request.what_ifs,
        prediction=Prediction(roofline(request.gpu)),
        world=request.world,
        variables=dict(request.variables),
        network=request.network,
        is_own_process=True,
    )
    files = isolation(
        request.writes, str(folder / WRITTEN), restricts=True, temporary_in=str(folder)
    )
    with isolated_recording(files, recorded) as (isolated, record):
        code = leaving(run(script, stopper))
        flush_outputs()
        os._exit(code)  # threads of the script may still run, and nothing waits for them
