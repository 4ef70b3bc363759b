"""What `tally run --real-values` does instead of simulating: the first step, on the CPU."""

import os
import sys
from typing import TYPE_CHECKING

from torchtally.cli.chip_names import say
from torchtally.cli.destination import place_of
from torchtally.cli.output import emit, is_coloured, look, write_or_emit
from torchtally.cli.run_options import RunOptions
from torchtally.cli.run_state import StartState
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.chips import Cluster
    from torchtally.numerics.first_step import FirstStep
    from torchtally.tracer.script_file import Script
    from torchtally.tracer.stopper import ScriptOutcome
    from torchtally.views.tensor_numbers import RealStep

SIMULATIONS = {
    "--watch": "watch", "--brief": "brief", "--html": "html", "--assert": "limits",
    "--budget": "budget", "--what-if": "what_ifs", "--compile": "compiler", "--steps": "steps",
    "--tokens": "tokens", "--columns": "columns", "--output": "output", "--rank": "rank",
    "--update": "update", "--no-oom": "memory_is_limited",
}  # fmt: skip
"""Options of a simulation, by the field that says whether they are given."""
NO_LAYER_EXIT = 1
"""Where the script ended without an error, and no layer ran with gradients."""


def run_for_real(options: RunOptions, script: "Script", gpus: "Cluster", start: StartState) -> int:
    """Run the script to the end of its first backward pass, and report; the exit code is the
    script's.
    """
    from torchtally.cli.run import leave_threads_behind
    from torchtally.isolation.network import limited_network
    from torchtally.isolation.run import isolation
    from torchtally.number_formats import choose_formats
    from torchtally.numerics.first_step import FirstStep
    from torchtally.tracer.script import check, run
    from torchtally.tracer.stopper import Stopper
    from torchtally.views.tensor_numbers import chosen
    from torchtally.virtual.on_host import cuda_on_host
    from torchtally.virtual.stand_ins import apply

    _check(options, script, gpus)
    check(script)
    place, started_in = place_of(options.json, "--json"), os.getcwd()

    def report(outcome: "ScriptOutcome") -> int:
        os.chdir(started_in)
        _report(_real_step(script, step, outcome), options, place)
        return outcome.exit_code if step.outputs else outcome.exit_code or NO_LAYER_EXIT

    stopper = Stopper(
        lambda outcome: isolated.outside(report, outcome), max_seconds=options.max_seconds
    )
    step = FirstStep(choose_formats(chosen(())), stopper.steps_are_done)
    with (
        isolation(options.writes, None, restricts=True) as isolated,
        limited_network(options.network, lambda kind, place, frame: None, is_own_process=True),
    ):
        say(f"the first step of {script} runs for real, on the CPU", is_quiet=options.quiet)
        start.end()
        with cuda_on_host(gpus.chip), apply(step.stand_ins()), step.watching_weights():
            outcome = run(script, stopper)
        code = isolated.outside(report, outcome)
        leave_threads_behind(code)
    return code


def _check(options: RunOptions, script: "Script", gpus: "Cluster") -> None:
    from torchtally.tracer.launchers import launch_of

    defaults = RunOptions()
    for name, field in SIMULATIONS.items():
        if getattr(options, field) != getattr(defaults, field):
            raise UsageError(f"{name} is of a simulation: leave it out, or --real-values.")
    if gpus.count > 1 or launch_of(script) is not None:
        raise UsageError("--real-values runs one process: give one GPU, and no launcher.")


def _real_step(script: "Script", step: "FirstStep", outcome: "ScriptOutcome") -> "RealStep":
    from torchtally.views.tensor_numbers import RealStep, TensorNumbers

    name = str(script)
    ending = outcome.ending
    return RealStep(
        script=name,
        ending="" if step.gradients else ending.message or ending.kind,
        shrunk=tuple(step.shrunk),
        outputs=TensorNumbers(name, step.formats, tuple(step.outputs)),
        gradients=TensorNumbers(name, step.formats, tuple(step.gradients)),
    )


def _report(step: "RealStep", options: RunOptions, place: str | None) -> None:
    from torchtally.report.formats import render
    from torchtally.report.tensor_numbers import real_step_report

    report, stderr = real_step_report(step), sys.stderr
    if not options.quiet:
        text = render(report, options.format, look(stderr))
        emit(text, stderr, is_coloured=is_coloured(stderr))
    if place is not None:
        write_or_emit(render(report, "json", look(stderr)), place)
