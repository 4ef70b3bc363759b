"""`tally audit`: run a script on a real GPU and on a simulated one, and hold them side by side."""

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import RunParser, fraction, positive_count
from torchtally.cli.run import place_of
from torchtally.errors import ScriptError, UsageError

if TYPE_CHECKING:
    from torchtally.chips import Chip
    from torchtally.runs.measure.comparison import Comparison, Pair
    from torchtally.runs.measure.document import Measurement
    from torchtally.runs.measurements import Device, Measurements
    from torchtally.runs.protocol import MeasureRequest
    from torchtally.table import Cell, Table

NAME = "audit"
SUMMARY = "on a machine with a GPU: hold a prediction against the real run of a script"

DEFAULT_TOP = 15
NO_LINE = "(rests of blocks)"
MOST_UNEXPLAINED = 0.2
"""Share of a peak that rests of blocks may be; more, and the history is not whole."""

EPILOG = """\
Everything tally does not know goes to the script; after -- everything does:

examples:
  tally audit train.py
  tally audit train.py --batch_size=12 --steps 5 --json audit.json
  tally audit train.py --tolerance 0.5% --reserved-tolerance 2% -o both.json
  tally audit -m mypackage.train --gpu H100-SXM -- --config base.yaml

The script is really executed, twice, one run after the other: on the GPU and on a simulated one.
The same program measures both, by what torch.cuda says: the allocator's counts at the end of each
step and its history in between. It sees one GPU, the first one; it has no stdin. What the real run
prints goes to stderr; what the simulated one prints is shown only when it fails. It writes what
it writes, checkpoints too, in both.

Backward operators are one row among the lines: on a GPU, autograd allocates in a thread of its
own, below no line of Python.

Exit code: 0 when peak allocated and peak reserved are within their tolerances and both runs went
the same way, 1 when not; 2 for a wrong command line, no GPU, or a script that fails; 130 on Ctrl-C.
"""


def add_parser(subparsers: "argparse._SubParsersAction[RunParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage="tally audit [options] SCRIPT [ARGS ...] | "
        "tally audit [options] -m MODULE [ARGS ...]",
        description="Run a training script for a few steps on this machine's GPU and on a "
        "simulated one, and print what was predicted beside what was measured.",
        epilog=EPILOG,
    )
    parser.__class__ = RunParser
    add = parser.add_argument
    add("--steps", type=positive_count, default=3, metavar="N",
        help="stop after N optimizer steps (default 3)")  # fmt: skip
    add("--gpu", metavar="NAME",
        help="the chip to simulate (default: the one that is there)")  # fmt: skip
    add("--tolerance", type=fraction, default=0.01, metavar="T",
        help="how far off peak allocated may be (default 1%%)")  # fmt: skip
    add("--reserved-tolerance", type=fraction, default=0.05, metavar="T",
        help="how far off peak reserved may be (default 5%%)")  # fmt: skip
    add("--top", type=positive_count, default=DEFAULT_TOP, metavar="N",
        help=f"how many lines (default {DEFAULT_TOP})")  # fmt: skip
    add("--json", metavar="FILE", help="the comparison as JSON to FILE, or to stdout for -")
    add("-o", "--output", metavar="FILE", help="keep both measurements, as JSON")
    add("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does")
    add("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Run twice, compare, print. Returns 0 within the tolerances and 1 outside."""
    from torchtally.cli.output import emit, width, write_or_emit
    from torchtally.runs.measure.comparison import Comparison
    from torchtally.runs.measurements import Measurements
    from torchtally.runs.protocol import MeasureRequest

    if args.script is None and args.module is None:
        raise UsageError("which script?\nGive one: `tally audit train.py`, or -m MODULE.")
    if args.module is None and not os.path.exists(args.script):
        raise ScriptError(f"{args.script}: no such file.\nGive the path of the training script.")
    json_place, output_place = place_of(args.json, "--json"), place_of(args.output, "-o")
    ours = MeasureRequest(
        script=args.module or args.script,
        arguments=tuple(args.script_arguments),
        is_module=args.module is not None,
        steps=args.steps,
    )
    with Measurements() as runs:
        chip = chip_of(args.gpu, runs.device())
        measured, predicted = both(runs, ours, chip, is_quiet=args.quiet)
    found = Comparison(measured, predicted, args.tolerance, args.reserved_tolerance)
    if output_place is not None:
        kept = {"measured": measured.to_json(), "predicted": predicted.to_json()}
        write_or_emit(dumps(kept), output_place)
    if json_place is not None:
        write_or_emit(dumps(document(found, chip)), json_place)
    if json_place != "-" and output_place != "-":
        emit(text(found, chip, width=width(), top=args.top))
    return found.verdict.value


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
            "Name the chip that it is with --gpu NAME."
        ) from None


def both(
    runs: "Measurements", ours: "MeasureRequest", chip: "Chip", *, is_quiet: bool
) -> "tuple[Measurement, Measurement]":
    """The real run, then the simulated one; a script that fails there is not run again."""
    from msgspec.structs import replace

    from torchtally.runs.measure.document import ended

    def say(what: str) -> None:
        if not is_quiet and sys.stderr is not None:
            print(f"tally: {what}", file=sys.stderr, flush=True)

    steps = f"{ours.steps} training step{'s' * (ours.steps > 1)}"
    say(f"{steps} on the GPU")
    started_s = time.monotonic()
    measured = runs.measure(ours)
    if measured.failure:
        return measured, ended("not run", "the script failed on the GPU")
    say(f"done in {time.monotonic() - started_s:.1f} s; the same on a simulated {chip.name}")
    started_s = time.monotonic()
    predicted = runs.measure(replace(ours, gpu=chip.name))
    say(f"done in {time.monotonic() - started_s:.1f} s")
    return measured, predicted


def dumps(document: dict[str, Any]) -> str:
    import json

    return json.dumps(document, indent=2) + "\n"


# The answer ---------------------------------------------------------------------------------------


def text(found: "Comparison", chip: "Chip", *, width: int, top: int = DEFAULT_TOP) -> str:
    """The verdict first, then the tables."""
    from torchtally.progress import printable
    from torchtally.report.grid import table_lines, wrapped
    from torchtally.runs.measure.comparison import AuditVerdict

    if found.verdict is AuditVerdict.FAILED:
        return failed(found, width)
    lines = headline(found, width)
    for remark in remarks(found, chip):
        lines += wrapped(remark, width)
    for table in (peaks(found), held(found), by_line(found).top(top)):
        lines += ["", *(table_line.plain for table_line in table_lines(table, width))]
    return "\n".join(printable(line).rstrip() for line in lines) + "\n"


def failed(found: "Comparison", width: int) -> str:
    """What there is to say of a script that failed."""
    from torchtally.progress import printable
    from torchtally.report.grid import wrapped

    lines = ["nothing to compare: the script failed", *wrapped(found.failure, width)]
    if not found.measured.failure and found.predicted.output:
        lines.append("  The last lines of its output there:")
        lines += [f"    {printable(line)}" for line in found.predicted.output.splitlines()]
    return "\n".join(lines) + "\n"


def headline(found: "Comparison", width: int) -> list[str]:
    """The verdict, and how far off the two peaks are."""
    import textwrap

    from torchtally.runs.measure.comparison import AuditVerdict

    verdict = "within" if found.verdict is AuditVerdict.WITHIN else "OUTSIDE"
    figures = (
        f"peak allocated predicted {off(found.allocated)}, peak reserved {off(found.reserved)}"
    )
    if found.measured.is_out_of_memory != found.predicted.is_out_of_memory:
        figures = found.disagreements[0]
    line = f"{verdict} tolerance: {figures}"
    return textwrap.wrap(line, width, subsequent_indent="  ")


def off(pair: "Pair") -> str:
    """How far a prediction is off, in words."""
    from torchtally.units import format_bytes

    if not pair.off_bytes:
        return "to the byte"
    direction = "too high" if pair.off_bytes > 0 else "too low"
    size = format_bytes(abs(pair.off_bytes))
    if not pair.measured_bytes:
        return f"{size} {direction}"
    return f"{abs(pair.off_bytes) / pair.measured_bytes:.2%} ({size}) {direction}"


def remarks(found: "Comparison", chip: "Chip") -> list[str]:
    """What a reader has to know beside the numbers."""
    from torchtally.units import format_bytes, format_fraction

    ours, theirs = found.measured, found.predicted
    kept = [
        f"Tolerances: {format_fraction(found.tolerance)} of allocated, "
        f"{format_fraction(found.reserved_tolerance)} of reserved. Measured on {ours.device} with "
        f"torch {ours.torch}, predicted for {chip.name}.",
    ]
    if found.disagreements:
        kept.append(f"Disagreement: {'; '.join(found.disagreements)}.")
    if ours.is_out_of_memory and theirs.is_out_of_memory:
        kept.append("Both ran out of memory: these are the peaks up to there.")
    elif not ours.steps:
        kept.append("No training step was completed on the GPU.")
    if ours.peak_step != theirs.peak_step:
        kept.append(
            f"Most is held in step {ours.peak_step} on the GPU and in step {theirs.peak_step} of "
            "the simulation: categories and lines are of different moments."
        )
    for run, size in (
        ("of the real run", found.unexplained.measured_bytes),
        ("of the simulated run", found.unexplained.predicted_bytes),
    ):
        if size > MOST_UNEXPLAINED * max(found.allocated.measured_bytes, 1):
            kept.append(
                f"The allocator's history {run} lacks {format_bytes(size)} of the peak: a script "
                "that records the history itself ends ours. By step, category and line, nothing "
                "can be compared."
            )
    if abs(ours.total_memory_bytes - theirs.total_memory_bytes) > 0.02 * ours.total_memory_bytes:
        kept.append(
            f"The GPU has {format_bytes(ours.total_memory_bytes)} and the simulated one "
            f"{format_bytes(theirs.total_memory_bytes)}: name the right one with --gpu."
        )
    return kept


def peaks(found: "Comparison") -> "Table":
    """The peaks of the run and of its steps."""
    from torchtally.table import Column, Table
    from torchtally.units import Unit

    rows: list[tuple[Cell, ...]] = [
        ("peak allocated", *cells(found.allocated)),
        ("peak reserved", *cells(found.reserved)),
    ]
    for number, (allocated, reserved) in enumerate(found.steps, start=1):
        rows.append((f"step {number} allocated", *cells(allocated)))
        rows.append((f"step {number} reserved", *cells(reserved)))
    note = (
        "A step's peaks are by the allocator's history, blocks rounded up to 512 bytes: without "
        "the rests that are too small to split off."
        if found.steps
        else ""
    )
    columns = (Column("what", "peaks", Unit.NAME), *numbers())
    return Table("Memory", columns, tuple(rows), (None,) * len(columns), note=note)


def held(found: "Comparison") -> "Table":
    """What the peak is made of, as far as the optimizers tell."""
    from torchtally.table import Column, Table
    from torchtally.units import Unit

    return Table(
        title="At the peak of allocated memory, by category",
        columns=(Column("category", "held for", Unit.NAME), *numbers()),
        rows=tuple((str(name).replace("_", " "), *cells(pair)) for name, pair in found.held),
        totals=(None, *cells(found.allocated)),
        note="The rest: activations, temporaries, workspaces, buffers and batches. Of a step that "
        "did not end, nobody knows the gradients.",
    )


def by_line(found: "Comparison") -> "Table":
    """What the peak is made of, by the line below which it was allocated."""
    from torchtally.table import Column, Table
    from torchtally.units import Unit
    from torchtally.views.lines import own_root, short_path

    root = own_root(line.file for line, _ in found.lines if line.line and is_own(line.file))
    rows = [
        (
            *cells(pair),
            f"{short_path(line.file, root)}:{line.line}" if line.line else line.file,
            line.text,
        )
        for line, pair in found.lines
    ]
    if found.unexplained.measured_bytes or found.unexplained.predicted_bytes:
        rows.append((*cells(found.unexplained), NO_LINE, ""))
    return Table(
        title="At the peak of allocated memory, by the line that was running",
        columns=(
            *numbers(is_brief=True),
            Column("line", "line", Unit.PLACE),
            Column("source", "source", Unit.TEXT),
        ),
        rows=tuple(rows),
        totals=(*cells(found.allocated), None, None),
        note="Of blocks, the rests that are too small to split off belong to no line.",
    )


def is_own(file: str) -> bool:
    return "site-packages" not in file and "dist-packages" not in file


def numbers(*, is_brief: bool = False) -> "tuple[Any, ...]":
    """The columns that all tables share. Brief ones make room for texts first."""
    from torchtally.table import Column
    from torchtally.units import Unit

    return (
        Column("measured_bytes", "measured", Unit.BYTES),
        Column("predicted_bytes", "predicted", Unit.BYTES),
        Column("off_bytes", "off by", Unit.BYTES, rank=int(is_brief)),
        Column("ratio", "ratio", Unit.FRACTION),
    )


def cells(pair: "Pair") -> "tuple[int, int, int, float | None]":
    return pair.measured_bytes, pair.predicted_bytes, pair.off_bytes, pair.ratio


def document(found: "Comparison", chip: "Chip") -> dict[str, Any]:
    """For programs. All sizes are bytes; `measured` and `predicted` are the runs themselves."""

    def pair(pair: "Pair") -> dict[str, Any]:
        names = ("measured_bytes", "predicted_bytes", "off_bytes", "ratio")
        return dict(zip(names, cells(pair), strict=True))

    return {
        "version": 1,
        "verdict": found.verdict.name.lower(),
        "chip": chip.name,
        "tolerance": found.tolerance,
        "reserved_tolerance": found.reserved_tolerance,
        "failure": found.failure,
        "disagreements": list(found.disagreements),
        "peak_allocated": pair(found.allocated),
        "peak_reserved": pair(found.reserved),
        "steps": [
            {"peak_allocated": pair(allocated), "peak_reserved": pair(reserved)}
            for allocated, reserved in found.steps
        ],
        "held": {str(name): pair(couple) for name, couple in found.held},
        "lines": [
            {"file": line.file, "line": line.line, "text": line.text, **pair(couple)}
            for line, couple in found.lines
        ],
        "measured": found.measured.to_json(),
        "predicted": found.predicted.to_json(),
    }
