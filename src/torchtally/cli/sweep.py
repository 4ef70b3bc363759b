"""`tally sweep`: train a config many times with other values, and compare."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import positive_count
from torchtally.cli.output import add_format, write_report
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.report.report import Report
    from torchtally.runs.processes import Executor, Exit, Job
    from torchtally.sweep.definition import Definition, SweepPoint
    from torchtally.sweep.folder import SweepFolder
    from torchtally.sweep.results import RunResult
    from torchtally.train.config import TrainConfig

NAME = "sweep"
SUMMARY = "train a config many times with other values, and compare"

SOME_FAILED = 1
CHECKPOINTLESS = ("--checkpoint.no-at-end",)

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
        description="Train what a TOML file describes many times, with other values for some of\n"
        "its keys: a grid of them, random draws, or both.",
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
    add("--seed", metavar="N", type=int, default=1, help="of the draws (default 1)")
    add("--out", metavar="DIR", help="the sweep's folder (default: the config's log.folder-sweep)")
    add("--workers", metavar="N", type=positive_count,
        help="runs at a time (default: one for each GPU; on the CPU one, or cores / "
        "OMP_NUM_THREADS where that is set)")  # fmt: skip
    add("--threads", metavar="N", type=positive_count,
        help="of a run's CPU work (default: cores / workers; with --on ray 1)")  # fmt: skip
    add("--on", choices=("processes", "ray"), default="processes",
        help="where runs are made: on this machine (default), or by Ray")  # fmt: skip
    add("--resume", action="store_true", help="go on with the sweep in the folder")
    add("--keep-checkpoints", action="store_true",
        help="keep those of runs that ended, as the config says; without it there are only "
        "those that a run goes on from, removed when it has ended")  # fmt: skip
    add("--dry-run", action="store_true", help="print the runs that would be, and stop there")
    add_format(parser)
    add("--parquet", metavar="FILE", help="the results as Parquet, see below")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Check everything, make the runs, print what came of them."""
    definition = _definition(args)
    if args.dry_run:
        return _dry_run(args, definition)
    _check(args)
    from torchtally.sweep.folder import open_folder

    with open_folder(_out(args, definition), definition, resumes=args.resume) as folder:
        number = _conduct(args, folder)
        return _tell(args, folder, number)


def _check(args: argparse.Namespace) -> None:
    """What is asked for must be possible before anything runs."""
    from torchtally.sweep.on_ray import check_ray
    from torchtally.sweep.parquet import check_parquet

    if args.parquet is not None:
        check_parquet(Path(args.parquet))
    if args.on == "ray":
        check_ray()


# What is to be run --------------------------------------------------------------------------------


def _definition(args: argparse.Namespace) -> "Definition | None":
    """The sweep that the command line describes; None where it leaves that to the folder."""
    if args.config is None:
        if not (args.resume and args.out) or args.grid or args.random or args.set:
            raise UsageError(
                "which config?\nGive one: `tally sweep CONFIG --grid optimizer.lr=0.01,0.1`; or "
                "--resume --out DIR alone, to go on with a sweep as it was."
            )
        return None
    from torchtally.sweep.definition import define
    from torchtally.sweep.space import fixed_choice, grid, points, random_choice

    if bool(args.random) != bool(args.runs):
        raise UsageError(
            "--random: how many? Give --runs N." if args.random else "--runs: is for --random."
        )
    if not (args.grid or args.random):
        raise UsageError("what is to be tried? Give --grid KEY=A,B or --random KEY=A..B --runs N.")
    try:
        toml = Path(args.config).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{args.config}: cannot be read ({error}).") from error
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
    from torchtally.sweep.definition import read_definition
    from torchtally.sweep.folder import DEFINITION
    from torchtally.sweep.keys import flags

    out = _out(args, definition)
    if definition is None:
        path = out / DEFINITION
        if not path.is_file():
            raise UsageError(f"{out}: no sweep found to resume.")
        definition = read_definition(path.read_text(encoding="utf-8"), str(path))
    lines = [f"{len(definition.points)} runs, in folders of {out}:"]
    for point in definition.points:
        changes = [flag for key, value in point.values for flag in flags(key, value)]
        lines.append(f"  {point.name}")
        lines.append(f"    tally train {shlex.join([definition.config, *changes])}")
    emit("\n".join(lines) + "\n")
    return 0


def job(folder: "SweepFolder", point: "SweepPoint") -> "Job":
    """A run as a process: `tally train` with its values; going on where it has begun before."""
    from torchtally.runs.processes import Job
    from torchtally.sweep.keys import flags

    changes = [flag for key, value in point.values for flag in flags(key, value)]
    checkpoints = () if folder.definition.keeps_checkpoints else CHECKPOINTLESS
    return Job(
        name=point.name,
        arguments=(
            "train", *(["--resume"] if folder.has_log(point) else []), str(folder.config),
            *checkpoints, *changes, f"--log.folder={folder.run(point)}",
        ),
        output=str(folder.output(point)),
        folder=os.getcwd(),
    )  # fmt: skip


# The runs -----------------------------------------------------------------------------------------


def _conduct(args: argparse.Namespace, folder: "SweepFolder") -> int:
    """Make all runs that are not there yet. The signal that ended it, or 0."""
    from torchtally.cli.output import width
    from torchtally.sweep.conduct import StopSignals, conduct
    from torchtally.sweep.progress import Going, SweepProgress
    from torchtally.sweep.results import ending, result_of

    points = {point.name: point for point in folder.definition.points}
    waiting = [point for point in points.values() if not result_of(folder, point).status.is_final]
    if not waiting:
        return 0
    config = folder.definition.train_config(waiting[0])
    executor, workers = _executor(args, folder, config, len(waiting))
    progress = SweepProgress(
        sys.stderr, runs=len(points), kept=len(points) - len(waiting), workers=workers,
        width=width(),
    )  # fmt: skip
    progress.say(_opening(folder, config, len(points), len(waiting), workers, args.on))

    def started(job: "Job") -> None:
        point = points[job.name]
        folder.begin(point)
        steps = folder.definition.train_config(point).steps
        progress.going[job.name] = Going(job.name, steps, folder.run(point))

    def ended(exited: "Exit") -> None:
        point = points[exited.name]
        run_ending = ending(exited, folder.output(point), is_stopping=bool(signals.number))
        folder.note(point, run_ending.as_json())
        if run_ending.status.is_final and not folder.definition.keeps_checkpoints:
            folder.remove_checkpoints(point)
        progress.ended(result_of(folder, point))

    with executor, StopSignals() as signals:
        conduct(
            (job(folder, point) for point in waiting), executor, signals,
            started=started, ended=ended, passing=progress.passing,
            stopping=lambda n: progress.say(
                f"stopping: {n} run{'s' * (n != 1)} may save first; once more kills at once"
            ),
        )  # fmt: skip
    progress.close()
    return signals.number


def _opening(
    folder: "SweepFolder", config: "TrainConfig", runs: int, waiting: int, workers: int, on: str
) -> str:
    kept = f"{runs - waiting} of {runs} are there, " if waiting < runs else ""
    where = "by Ray" if on == "ray" else f"{workers} at a time"
    text = f"{kept}{waiting} run{'s' * (waiting != 1)} to make, {where}, in {folder.path}"
    if config.task == "language" and config.data.text and waiting > 1:
        text += (
            "\nevery run turns data.text into tokens anew; `tally data prepare` does it once, for "
            "data.train"
        )
    return text


def _executor(
    args: argparse.Namespace, folder: "SweepFolder", config: "TrainConfig", runs: int
) -> "tuple[Executor, int]":
    """What makes the runs, and how many at a time."""
    from torchtally.runs.processes import Processes
    from torchtally.sweep.conduct import TRAIN_MODULES
    from torchtally.sweep.devices import THREADS, share
    from torchtally.sweep.on_ray import RayTasks

    if args.on == "processes":
        shares = share(config, workers=args.workers, threads=args.threads, runs=runs)
        return Processes(shares.environments, preload=TRAIN_MODULES), shares.workers
    cpus = args.threads or 1
    most = min(args.workers or runs, runs)
    wants_gpu = None if config.device == "auto" else config.device.startswith("cuda")
    tasks = RayTasks(
        folder.path, cpus=cpus, environment={THREADS: str(cpus)}, most=most, wants_gpu=wants_gpu
    )
    return tasks, most


# The results --------------------------------------------------------------------------------------


def _tell(args: argparse.Namespace, folder: "SweepFolder", number: int) -> int:
    """Write and print what came of all runs; the exit status."""
    from torchtally.sweep.parquet import write_parquet
    from torchtally.sweep.results import result_of
    from torchtally.sweep.rows import document

    definition = folder.definition
    results = [result_of(folder, point) for point in definition.points]
    results_ = document(definition, results)
    folder.write_results(results_)
    if args.parquet is not None:
        write_parquet(Path(args.parquet), definition, results)
    write_report(
        sweep_report(definition, results, results_, str(folder.path)), args, is_beside_files=True
    )
    if number:
        return 128 + number
    return SOME_FAILED if any(result.status.is_failure for result in results) else 0


def sweep_report(
    definition: "Definition", results: "list[RunResult]", document: "dict[str, Any]", folder: str
) -> "Report":
    """The runs best first, a plot, and where to look on."""
    from torchtally.report.report import Look, Report
    from torchtally.report.terminal import prose, table_text
    from torchtally.sweep.plot import chart, chart_text
    from torchtally.sweep.rows import results_table

    drawn = chart(definition, results)
    table = results_table(definition, results, drawn.marks if drawn is not None else {})

    def text(look: Look) -> str:
        text = table_text(table, width=look.width, is_coloured=look.is_coloured)
        if drawn is not None:
            text += "\n" + chart_text(drawn, width=min(look.width, 80))
        text += "\n"
        for result in [result for result in results if result.status.is_failure][:3]:
            name = f"{result.point.name} {result.status}: {result.ending.gist}"
            text += prose(name, look.width)
        return f"{text}Written to {folder}: results.json, and a folder for each run.\n"

    return Report(
        title=table.title, tables=(("runs", table),), text=text, document=lambda: document
    )
