"""`tally audit`: run a script on a real GPU and on a simulated one, and hold them side by side."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.arguments import RunParser, ScriptOptions, check_script
from torchtally.cli.chip_names import say, say_variants
from torchtally.cli.destination import place_of
from torchtally.cli.installation import check_simulates
from torchtally.cli.output import ReportOptions
from torchtally.errors import UsageError
from torchtally.options import CHIP, COUNT, Form, output, own
from torchtally.options.simulation import IsolationOptions
from torchtally.units import parse_fraction

if TYPE_CHECKING:
    from torchtally.chips import Chip
    from torchtally.runs.measurements import Measurements
    from torchtally.runs.protocol import Device, MeasureRequest
    from torchtally.trace.measurement import Measurement
    from torchtally.tracer.script_file import Script

NAME = "audit"
SUMMARY = "on a machine with a GPU: compare a prediction with the real run of a script"

DEFAULT_TOP = 15
TOLERANCE = Form("T", parse_fraction)

USAGE = "tally audit [options] SCRIPT [ARGS ...] | tally audit [options] -m MODULE [ARGS ...]"
EPILOG = """\
Options that tally does not know go to the script; after -- all do:

examples:
  tally audit train.py
  tally audit train.py --batch_size=12 --steps 5 --json audit.json
  tally audit train.py --tolerance 0.5% --reserved-tolerance 2% -o both.json
  tally audit -m mypackage.train --gpu H100-SXM -- --config base.yaml

The script is really executed, twice, one run after the other: on the GPU and on a simulated one.
The same program measures both, by what torch.cuda says: the allocator's counts at the end of each
step and its history in between. It sees one GPU, the first one; it has no stdin. What the real run
prints goes to stderr; what the simulated one prints is shown only when it fails. The real run
writes its checkpoints; what the simulated one writes is deleted, and changes nothing.

Backward operators are one row among the lines: on a GPU, autograd allocates in a thread of its
own, below no line of Python.

Exit code: 0 when peak allocated and peak reserved are within their tolerances and both runs went
the same way, 1 when not; 2 for a wrong command line, no GPU, or a script that fails; 130 on Ctrl-C.
"""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(ScriptOptions, IsolationOptions, ReportOptions):
    """Run a training script for a few steps on this machine's GPU and on a simulated one, and
    print what was predicted beside what was measured.
    """

    steps: int = own("--steps", "stop after N optimizer steps (default 3)", COUNT, default=3)
    gpu: str | None = own("--gpu", "the chip to simulate (default: that of this machine)", CHIP)
    tolerance: float = own(
        "--tolerance", "how far off peak allocated may be (default 1%%)", TOLERANCE, default=0.01
    )
    reserved_tolerance: float = own(
        "--reserved-tolerance",
        "how far off peak reserved may be (default 5%%)",
        TOLERANCE,
        default=0.05,
    )
    top: int = own("--top", f"how many lines (default {DEFAULT_TOP})", COUNT, default=DEFAULT_TOP)
    output: str | None = output("keep both measurements, as JSON")
    quiet: bool = own("--quiet", "no progress on stderr")


PARSER = RunParser


def command(options: AuditOptions) -> int:
    """Run twice, compare, print. Returns 0 within the tolerances and 1 outside."""
    from torchtally.cli.output import write_or_emit, write_report
    from torchtally.memory.comparison import Comparison
    from torchtally.report.audit import audit_report, runs_document
    from torchtally.runs.measurements import Measurements
    from torchtally.runs.protocol import MeasureRequest

    check_simulates()
    script = options.script_named("tally audit train.py")
    check_one_process(script)
    check_script(script)
    if options.gpu is not None:
        say_variants([options.gpu], is_quiet=options.quiet)
    place_of(options.json, "--json")  # raises before anything has run
    output_place = place_of(options.output, "-o")
    ours = MeasureRequest(
        script=script.target,
        arguments=script.arguments,
        is_module=script.is_module,
        steps=options.steps,
        writes=options.writes,
        network=options.network,
    )
    with Measurements() as runs:
        chip = chip_of(options.gpu, runs.device())
        measured, predicted = both(runs, ours, chip, is_quiet=options.quiet)
    comparison = Comparison(measured, predicted, options.tolerance, options.reserved_tolerance)
    if output_place is not None:
        write_or_emit(runs_document(measured, predicted), output_place)
    if output_place != "-":
        write_report(audit_report(comparison, chip, top=options.top), options, is_beside_files=True)
    return comparison.verdict.value


def check_one_process(script: "Script") -> None:
    """Raises UsageError for a launcher of several processes."""
    from torchtally.tracer.launchers import launch_of

    launch = launch_of(script)
    if launch is not None:
        raise UsageError(
            f"{script.target} starts several processes, and one on one GPU is measured.\n"
            f"Give the script itself: `tally audit {launch.script}`."
        )


def chip_of(wanted: str | None, device: "Device") -> "Chip":
    """The chip to simulate, for the GPU that is there.

    Raises UsageError where there is none, or no chip of the table is it.
    """
    from torchtally.chips import chip
    from torchtally.errors import UnknownChipError
    from torchtally.units import format_bytes

    if not device.name:
        raise UsageError(
            "there is no CUDA GPU here: tally audit runs the script on one, to compare.\n"
            "tally run needs none: `tally run SCRIPT --gpu NAME` predicts alone."
            + (f"\ntorch said: {device.remark}" if device.remark else "")
        )
    try:
        return chip(wanted or device.name)
    except UnknownChipError as error:
        if wanted:
            raise
        raise UnknownChipError(
            f"this machine's GPU, with {format_bytes(device.total_memory_bytes)}, is not in the "
            f"table. {error}\n"
            "Name its chip: --gpu NAME."
        ) from None


def both(
    runs: "Measurements", ours: "MeasureRequest", chip: "Chip", *, is_quiet: bool
) -> "tuple[Measurement, Measurement]":
    """The real run, then the simulated one; a script that fails there is not run again."""
    from msgspec.structs import replace

    from torchtally.trace.measurement import failed_measurement

    steps = f"{ours.steps} training step{'s' * (ours.steps > 1)}"
    say(f"{steps} on the GPU", is_quiet=is_quiet)
    started_s = time.monotonic()
    measured = runs.measure(ours)
    if measured.failure:
        return measured, failed_measurement("not run", "the script failed on the GPU")
    took = f"done in {time.monotonic() - started_s:.1f} s"
    say(f"{took}; the same on a simulated {chip.name}", is_quiet=is_quiet)
    started_s = time.monotonic()
    predicted = runs.measure(replace(ours, gpu=chip.name))
    say(f"done in {time.monotonic() - started_s:.1f} s", is_quiet=is_quiet)
    return measured, predicted
