"""The program that runs a script once on a simulated GPU, and saves its trace."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from torchtally.runs.protocol import WRITTEN, TraceRequest, TraceResult
from torchtally.runs.request import RunRequest, simulation
from torchtally.timing.prediction import Prediction
from torchtally.timing.targets import cluster_of, roofline
from torchtally.tracer.script import run
from torchtally.tracer.script_file import Script
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
    asked = RunRequest(
        script=str(script),
        gpus=cluster_of(request.gpu),
        world=request.world,
        limit=StepLimit(request.steps),
        what_ifs=request.what_ifs,
        writes=request.writes,
        files=str(folder / WRITTEN),
        temporary_in=str(folder),
        network=request.network,
        variables=dict(request.variables),
        restricts=True,
    )
    prediction = Prediction(roofline(asked.target.name))
    with simulation(asked, prediction=prediction, on_done=stopper.steps_are_done) as (
        isolated,
        record,
    ):
        code = leaving(run(script, stopper))
        flush_outputs()
        os._exit(code)  # threads of the script may still run, and nothing waits for them
