"""`tally sweep`: train a config with many values of its keys, and compare."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtally.cli.destination import check_output
from torchtally.cli.output import OUTPUT, ReportOptions, look, write_report
from torchtally.errors import UsageError, needed_package
from torchtally.options import COUNT, FILE, Form, each, option, own

if TYPE_CHECKING:
    from torchtally.sweep.definition import Definition
    from torchtally.sweep.folder import SweepFolder

NAME = "sweep"
SUMMARY = "train a config with many values of its keys, and compare"

SOME_FAILED = 1
VALUES, RANGE = Form("KEY=A,B"), Form("KEY=A..B")

USAGE = "tally sweep CONFIG [--grid KEY=A,B] [--random KEY=A..B --runs N] [options]"
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


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ReportOptions):
    """Train what a TOML file describes many times, with different values for some of its keys:
    a grid, random draws, or both.
    """

    config: str | None = own(
        "CONFIG", "a TOML file, as for `tally train`", Form("CONFIG"), nargs="?"
    )
    grid: tuple[str, ...] = own("--grid", "try each of these values", VALUES, is_repeated=True)
    random: tuple[str, ...] = own("--random", "draw values from these", RANGE, is_repeated=True)
    set: tuple[str, ...] = own("--set", "one value for all runs", Form("KEY=A"), is_repeated=True)
    runs: int | None = own("--runs", "draws from --random, at each point of the grid", COUNT)
    seed: int = own("--seed", "seed of the draws (default 1)", Form("N", int), default=1)
    out: str | None = own(
        "--out", "the sweep's folder (default: the config's log.folder-sweep)", Form("DIR")
    )
    workers: int | None = own(
        "--workers",
        "runs at a time (default: one for each GPU; on the CPU one, or cores / OMP_NUM_THREADS "
        "where that is set)",
        COUNT,
    )
    threads: int | None = own(
        "--threads", "CPU threads per run (default: cores / workers; with --on ray 1)", COUNT
    )
    where: str = own(
        "--on",
        "where runs execute: on this machine (default), or by Ray",
        choices=each("processes", "ray"),
        default="processes",
    )
    resumes: bool = own("--resume", "continue the sweep in the folder")
    keeps_checkpoints: bool = own(
        "--keep-checkpoints",
        "keep checkpoints of finished runs, as the config says; by default a run keeps only those "
        "it can resume from, and removes them when it ends",
    )
    stops_worse: bool = own(
        "--stop-worse", "stop a run whose best loss is above the median of the others"
    )
    stops_worse_by: str | None = own(
        "--stop-worse-by",
        "the rule by which runs are stopped: median, or asha, by Ray Tune's scheduler",
        choices=each("median", "asha"),
    )
    dry_run: bool = own("--dry-run", "print the runs without starting them")
    parquet: str | None = option(
        "--parquet", OUTPUT, "the results as Parquet, see below", FILE, is_written=True
    )
    replace: bool = False


def command(options: SweepOptions) -> int:
    """Check everything, make the runs, print what came of them."""
    definition = _definition(options)
    if options.dry_run:
        return _dry_run(options, definition)
    _check(options)
    from torchtally.cli.output import width
    from torchtally.sweep.folder import open_folder
    from torchtally.sweep.make import Making, make_runs

    with open_folder(_out(options, definition), definition, resumes=options.resumes) as folder:
        wants = Making(options.where, options.workers, options.threads, _rule(options))
        number = make_runs(folder, wants, stream=sys.stderr, width=width())
        return _tell(options, folder, number)


def _check(options: SweepOptions) -> None:
    """What is asked for must be possible before anything runs."""
    from torchtally.sweep.on_ray import check_ray
    from torchtally.sweep.parquet import check_parquet, steps_file

    if options.parquet is not None:
        check_parquet(Path(options.parquet))
        check_output(str(steps_file(Path(options.parquet))), "--parquet", replaces=options.replace)
    if options.where == "ray":
        check_ray()
    if options.stops_worse_by == "asha":
        needed_package("ray.tune.schedulers", "--stop-worse-by asha", "ray")


def _rule(options: SweepOptions) -> str | None:
    return options.stops_worse_by or ("median" if options.stops_worse else None)


# What is to be run --------------------------------------------------------------------------------


def _definition(options: SweepOptions) -> "Definition | None":
    """The sweep that the command line describes; None where it leaves that to the folder."""
    if options.config is None:
        if not (options.resumes and options.out) or options.grid or options.random or options.set:
            raise UsageError(
                "missing config.\n"
                "Give one: `tally sweep CONFIG --grid optimizer.lr=0.01,0.1`; or --resume --out "
                "DIR alone, to go on with a sweep as it was."
            )
        return None
    from torchtally.files.reading import read_text
    from torchtally.sweep.definition import define
    from torchtally.sweep.space import fixed_choice, grid, points, random_choice
    from torchtally.train.config import WHAT

    if bool(options.random) != bool(options.runs):
        raise UsageError(
            "--random needs a number of runs: --runs N."
            if options.random
            else "--runs applies to --random only."
        )
    if not (options.grid or options.random):
        raise UsageError("nothing to vary: give --grid KEY=A,B or --random KEY=A..B --runs N.")
    toml = read_text(options.config, WHAT)
    grids = [*map(fixed_choice, options.set), *map(grid, options.grid)]
    drawn = points(
        grids, [random_choice(words) for words in options.random], options.runs or 0, options.seed
    )
    return define(options.config, toml, drawn, keeps_checkpoints=options.keeps_checkpoints)


def _out(options: SweepOptions, definition: "Definition | None") -> Path:
    if options.out is not None:
        return Path(options.out)
    assert definition is not None
    folder = definition.train_config(definition.points[0]).log.folder.rstrip("/")
    return Path(f"{folder}-sweep")


def _dry_run(options: SweepOptions, definition: "Definition | None") -> int:
    import shlex

    from torchtally.cli.output import emit
    from torchtally.sweep.definition import load_definition
    from torchtally.sweep.folder import DEFINITION

    out = _out(options, definition)
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


def _tell(options: SweepOptions, folder: "SweepFolder", number: int) -> int:
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
    if options.parquet is not None:
        write_parquet(Path(options.parquet), definition, results)
    write_report(report, options, is_beside_files=True)
    if number:
        return 128 + number
    return SOME_FAILED if failed else 0
