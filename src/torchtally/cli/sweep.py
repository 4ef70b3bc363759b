"""`tally sweep`: train a config with many values of its keys, and compare."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchtally.cli.destination import add_output, check_output
from torchtally.cli.output import add_format, look, write_report
from torchtally.errors import UsageError
from torchtally.options import positive_count

if TYPE_CHECKING:
    from torchtally.sweep.definition import Definition
    from torchtally.sweep.folder import SweepFolder

NAME = "sweep"
SUMMARY = "train a config with many values of its keys, and compare"

SOME_FAILED = 1

EPILOG = """\
values:
  KEY is any of the config's, as `tally train CONFIG --help` lists them.
  --grid KEY=A,B,C        each of them; several --grid span all combinations
  --random KEY=A..B       a number between them, drawn evenly
  --random KEY=log:A..B   drawn evenly over its logarithm
  --random KEY=A,B,C      one of them
  --set KEY=A             the same for all runs
  Draws (--runs of them) are made at each point of the grid. A value is written
  as in TOML, words without quotes; none is what leaves an optional key out.

examples:
  tally sweep examples/teacher.toml --grid optimizer.lr=0.01,0.1
  tally sweep CONFIG --grid optimizer.lr=1e-4,3e-4,1e-3 --grid model.layers=2,4
  tally sweep CONFIG --random optimizer.lr=log:1e-5..1e-1 \\
                     --random batch=8,16,32 --runs 20 --seed 1
  tally sweep CONFIG --grid "optimizer.betas=[0.9,0.95],[0.9,0.999]" --set steps=500
  tally sweep CONFIG --grid seed=1,2,3 --workers 3 --parquet seeds.parquet
  tally sweep --resume --out runs/teacher-sweep         after a kill: what is left

Each run is a `tally train` of its own in OUT/NAME, with all it says in
output.txt. Whatever ends the sweep ends its runs. Ctrl-C and SIGTERM let them save
first, a second one does not. --resume keeps what ended or diverged and goes on
with the rest, from their checkpoints.

--parquet FILE.parquet has a row a run; FILE-steps.parquet, beside it, all that
was logged. --on ray makes the runs tasks of the cluster at RAY_ADDRESS, or of one
started here: all its machines must see the same files below the same paths.

Exit code: 0 when all runs ended or diverged, 1 when some failed, 2 for a wrong
command line, 130 on Ctrl-C, 143 on SIGTERM.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage="tally sweep CONFIG [--grid KEY=A,B] [--random KEY=A..B --runs N] [options]",
        description="Train what a TOML file describes many times, with different values for some\n"
        "of its keys: a grid, random draws, or both.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("config", metavar="CONFIG", nargs="?", help="a TOML file, as for `tally train`")
    add("--grid", metavar="KEY=A,B", action="append", default=[], help="try each of these values")
    add("--random", metavar="KEY=A..B", action="append", default=[], help="draw values from these")
    add("--set", metavar="KEY=A", action="append", default=[], help="one value for all runs")
    add(
        "--runs",
        metavar="N",
        type=positive_count,
        help="draws from --random, at each point of the grid",
    )
    add("--seed", metavar="N", type=int, default=1, help="seed of the draws (default 1)")
    add("--out", metavar="DIR", help="the sweep's folder (default: the config's log.folder-sweep)")
    add("--workers", metavar="N", type=positive_count,
        help="runs at a time (default: one for each GPU; on the CPU one, or cores / "
        "OMP_NUM_THREADS where that is set)")  # fmt: skip
    add("--threads", metavar="N", type=positive_count,
        help="CPU threads per run (default: cores / workers; with --on ray 1)")  # fmt: skip
    add("--on", choices=("processes", "ray"), default="processes",
        help="where runs execute: on this machine (default), or by Ray")  # fmt: skip
    add("--resume", action="store_true", help="continue the sweep in the folder")
    add("--keep-checkpoints", action="store_true",
        help="keep checkpoints of finished runs, as the config says; by default a run keeps only "
            "those it can resume from, and removes them when it ends")  # fmt: skip
    add("--stop-worse", action="store_true",
        help="stop a run whose best loss is above the median of the others")  # fmt: skip
    add("--dry-run", action="store_true", help="print the runs without starting them")
    add_format(parser)
    add_output(parser, "--parquet", metavar="FILE", help="the results as Parquet, see below")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Check everything, make the runs, print what came of them."""
    definition = _definition(args)
    if args.dry_run:
        return _dry_run(args, definition)
    _check(args)
    from torchtally.cli.output import width
    from torchtally.sweep.folder import open_folder
    from torchtally.sweep.make import Making, make_runs

    with open_folder(_out(args, definition), definition, resumes=args.resume) as folder:
        wants = Making(args.on, args.workers, args.threads, args.stop_worse)
        number = make_runs(folder, wants, stream=sys.stderr, width=width())
        return _tell(args, folder, number)


def _check(args: argparse.Namespace) -> None:
    """What is asked for must be possible before anything runs."""
    from torchtally.sweep.on_ray import check_ray
    from torchtally.sweep.parquet import check_parquet, steps_file

    if args.parquet is not None:
        check_parquet(Path(args.parquet))
        check_output(str(steps_file(Path(args.parquet))), "--parquet", args)
    if args.on == "ray":
        if args.stop_worse:
            raise UsageError("--stop-worse is for runs on this machine: leave out --on ray.")
        check_ray()


# What is to be run --------------------------------------------------------------------------------


def _definition(args: argparse.Namespace) -> "Definition | None":
    """The sweep that the command line describes; None where it leaves that to the folder."""
    if args.config is None:
        if not (args.resume and args.out) or args.grid or args.random or args.set:
            raise UsageError(
                "missing config.\n"
                "Give one: `tally sweep CONFIG --grid optimizer.lr=0.01,0.1`; or --resume --out "
                "DIR alone, to go on with a sweep as it was."
            )
        return None
    from torchtally.reading import read_text
    from torchtally.sweep.definition import define
    from torchtally.sweep.space import fixed_choice, grid, points, random_choice
    from torchtally.train.config import WHAT

    if bool(args.random) != bool(args.runs):
        raise UsageError(
            "--random needs a number of runs: --runs N."
            if args.random
            else "--runs applies to --random only."
        )
    if not (args.grid or args.random):
        raise UsageError("nothing to vary: give --grid KEY=A,B or --random KEY=A..B --runs N.")
    toml = read_text(args.config, WHAT)
    grids = [*map(fixed_choice, args.set), *map(grid, args.grid)]
    drawn = points(
        grids, [random_choice(option) for option in args.random], args.runs or 0, args.seed
    )
    return define(args.config, toml, drawn, keeps_checkpoints=args.keep_checkpoints)


def _out(args: argparse.Namespace, definition: "Definition | None") -> Path:
    if args.out is not None:
        return Path(args.out)
    assert definition is not None
    folder = definition.train_config(definition.points[0]).log.folder.rstrip("/")
    return Path(f"{folder}-sweep")


def _dry_run(args: argparse.Namespace, definition: "Definition | None") -> int:
    import shlex

    from torchtally.cli.output import emit
    from torchtally.sweep.definition import load_definition
    from torchtally.sweep.folder import DEFINITION

    out = _out(args, definition)
    if definition is None:
        path = out / DEFINITION
        if not path.is_file():
            raise UsageError(f"{out}: no sweep found to resume.")
        definition = load_definition(path)
    lines = [f"{len(definition.points)} runs, in folders of {out}:"]
    for point in definition.points:
        lines.append(f"  {point.name}")
        lines.append(f"    tally train {shlex.join([definition.config, *point.flags])}")
    emit("\n".join(lines) + "\n")
    return 0


# The results --------------------------------------------------------------------------------------


def _tell(args: argparse.Namespace, folder: "SweepFolder", number: int) -> int:
    """Write and print what came of all runs; the exit status."""
    from torchtally.report.formats import render
    from torchtally.report.sweep import sweep_report
    from torchtally.sweep.chart import chart
    from torchtally.sweep.parquet import write_parquet
    from torchtally.sweep.results import result_of
    from torchtally.sweep.rows import document, results_table

    definition = folder.definition
    results = [result_of(folder, point) for point in definition.points]
    drawn = chart(definition, results)
    table = results_table(definition, results, drawn.marks if drawn is not None else {})
    failed = [result for result in results if result.status.is_failure]
    failures = [f"{run.point.name} {run.status}: {run.ending.gist}" for run in failed]
    report = sweep_report(table, drawn, failures, document(definition, results), str(folder.path))
    folder.write_results(render(report, "json", look(sys.stdout)))
    if args.parquet is not None:
        write_parquet(Path(args.parquet), definition, results)
    write_report(report, args, is_beside_files=True)
    if number:
        return 128 + number
    return SOME_FAILED if failed else 0
