"""`tally fit`: the largest batch size, or whatever else, that fits a GPU."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import COMPILERS, SECONDS, RunParser, ScriptOptions, check_script
from torchtally.cli.chip_names import gpu_or_default, say, say_variants
from torchtally.cli.installation import check_simulates
from torchtally.cli.output import ReportOptions, write_report
from torchtally.errors import UsageError
from torchtally.options import CHIP, COUNT, SHARE, Form, option, own
from torchtally.options.simulation import SIMULATION, ValueOptions

if TYPE_CHECKING:
    from torchtally.chips import Cluster
    from torchtally.fit.argument import Argument
    from torchtally.fit.search import Values

SUMMARY = "find the largest batch size (or any other number) that fits a GPU"

NOTHING_FITS = 1

USAGE = 'tally fit [options] --vary "--flag={}" SCRIPT [ARGS ...]'
EPILOG = """\
Options that tally does not know go to the script; after -- all do:

examples:
  tally fit train.py --vary "--batch_size={}" --gpu H100-SXM
  tally fit fsdp.py --vary "--batch_size={}" --gpu 16x8xH100-SXM
  tally fit train.py --vary "--seq-len {}" --multiple-of 64 --gpu A100-SXM
  tally fit train.py --config a.yaml --vary "train.batch={}" --gpu all
  tally fit --vary "--batch={}" torchrun --nproc-per-node 8 ddp.py
  tally fit train.py --vary "--batch_size={}" --compute-bound step
  tally fit train.py --vary "--batch_size={}" --compute-bound train.py:41
  tally fit train.py --vary "--batch_size={}" --mfu 40% --gpu H200
  tally fit -m mypackage.train --vary "--layers={}" --margin 2GiB --gpu H200

The script is really executed, once for each value that is tried and several at
a time: it reads its files, and what it writes is deleted (--writes real keeps
it, and lets it change what exists). It has no stdin, and its output is shown
only when it fails. Memory is assumed to grow with the value.

For one GPU the answer is verified: that value was run and fits, and the next
one was run and does not fit. For several GPUs it is computed, from two runs at
small values on one of those that run the same operators: where all allocations
grow linearly, those at any other value follow, and the model of the allocator
predicts what fits each chip. A third run, at the largest of the answers, must
allocate what was computed for it, byte for byte; otherwise every answer is
verified by runs. --verify always does that.

--compute-bound and --mfu ask from which value on a step (a line, a module) spends
more than half of its time in compute-bound kernels, or reaches this MFU: the
smallest such value, and the curve up to it. It was run and so was the one before
it; that it holds at larger values is assumed.

Evaluation passes that repeat the two before them take the same memory and are
not executed again; --no-folding executes them all.

Exit code: 0 when there is such a value, 1 when there is none
or the script fails, 2 for a wrong command line, 3 when the answer is not for
the code that was asked for (torch.compile ran eagerly), 130 on Ctrl-C.
"""


class FitParser(RunParser):
    """`--gpu` may come several times, and what is varied looks like an option itself."""

    def split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        ours, theirs = super().split(args)
        while "--vary" in ours[:-1]:
            place = ours.index("--vary")
            ours[place : place + 2] = [f"--vary={ours[place + 1]}"]
        return ours, theirs

    def check_once(self, option: str, seen: set[str]) -> None:
        if option != "--gpu":
            super().check_once(option, seen)


@dataclass(frozen=True, kw_only=True)
class FitOptions(ScriptOptions, ValueOptions, ReportOptions):
    """Find the largest value of one of a script's arguments at which a training step fits the
    memory of a GPU, by running the script on a simulated one.
    """

    vary: str = own(
        "--vary",
        'the argument of the script, with {} for the number: "--batch_size={}"; in place of the '
        "script's own of that name, if there is one",
        Form("ARG"),
        is_required=True,
    )
    gpu: tuple[str, ...] = own(
        "--gpu",
        "the chip, or a cluster of them; several, or `all`, for a table (`tally gpus` lists them); "
        "default: what TALLY_GPU names, else H100-SXM",
        CHIP,
        is_repeated=True,
    )
    low: int = own("--from", "the smallest value (default 1)", COUNT, default=1)
    high: int = own("--to", "the largest value (default 2**20)", COUNT, default=1 << 20)
    multiple_of: int = own("--multiple-of", "only multiples of N (default 1)", COUNT, default=1)
    compute_bound: str | None = own(
        "--compute-bound",
        "the smallest value instead from which this is compute-bound: step, a line (train.py:41) "
        "or a module (layers.0.mlp)",
        Form("WHAT"),
    )
    mfu: float | None = own(
        "--mfu", "the smallest value instead at which the step's MFU is this (40%%)", SHARE
    )
    margin: str = own(
        "--margin",
        "memory to leave free: a share of the chip's memory (3%%, the default) or a size (1GiB)",
        Form("M"),
        default="3%",
    )
    steps: int = own(
        "--steps",
        "judge by N training steps (default 2: the first one makes the optimizer's state)",
        COUNT,
        default=2,
    )
    jobs: int | None = own("--jobs", "runs at a time (default: one for each core)", COUNT)
    max_seconds: float | None = own(
        "--max-seconds", "a run that takes longer counts as failed", SECONDS
    )
    what_ifs: tuple[str, ...] = option(
        "--compile", SIMULATION, "as for `tally run`", choices=COMPILERS, default=()
    )
    folds: bool = own(
        "--no-folding", "run every pass of the model, even those like earlier ones", turns_off=True
    )
    verify: bool = own(
        "--verify", "for several GPUs: run both sides of each answer instead of computing it"
    )
    quiet: bool = own("--quiet", "no progress on stderr")


PARSER = FitParser


def command(options: FitOptions) -> int:
    """Search, and print the answer."""
    from torchtally.fit.argument import parse
    from torchtally.fit.chips import Fleet, parse_margin, search_of
    from torchtally.fit.search import Values
    from torchtally.fit.survey import Survey
    from torchtally.gates import GATE_EXIT
    from torchtally.report.fit import fit_report
    from torchtally.report.fit_progress import FitProgress
    from torchtally.runs.probes import Probes
    from torchtally.runs.protocol import ProbeRequest

    check_simulates()
    argument = parse(options.vary)
    names = options.gpu or [gpu_or_default(None, is_quiet=options.quiet)]
    clusters = clusters_named(names)
    script = script_of(options, clusters[0])
    margin = parse_margin(options.margin)
    values = Values(options.low, options.high, options.multiple_of)
    say_variants(options.gpu, is_quiet=options.quiet)
    if options.compute_bound is not None or options.mfu is not None:
        return _threshold(options, clusters, script, argument, values)
    searches = [search_of(cluster.chip, values, margin) for cluster in clusters]
    searches.sort(key=lambda search: search.chip.total_memory_bytes)
    ours = ProbeRequest(
        **script,
        gpu="",
        steps=options.steps,
        max_seconds=options.max_seconds,
        nonzero_fraction=options.nonzero_fraction,
        placeholder_limit=options.placeholder_limit,
        what_ifs=options.what_ifs,
        folds=options.folds,
        writes=options.writes,
        network=options.network,
    )
    fleet = Fleet(searches, argument, ours)
    progress = FitProgress(fleet, is_quiet=options.quiet)
    place, length = argument.own(ours.arguments)
    if length:
        own = " ".join(ours.arguments[place : place + length])
        progress.say(f"{' '.join(argument.words)} takes the place of {own}")
    survey = Survey(fleet) if len(searches) > 1 and not options.verify else None
    jobs = options.jobs or os.cpu_count() or 1
    with Probes() as runs, progress:
        if survey is not None:
            survey.run(runs, jobs, progress.print_run, progress.waiting)
        fleet.run(runs, jobs, progress.print_run, progress.waiting)
    write_report(fit_report(fleet, survey, margin, options.vary), options, is_beside_files=True)
    if fleet.caveats:
        return GATE_EXIT
    return (
        0 if any(search.bracket and search.bracket.largest for search in searches) else NOTHING_FITS
    )


def _threshold(
    options: FitOptions,
    clusters: "Sequence[Cluster]",
    script: dict[str, Any],
    argument: "Argument",
    values: "Values",
) -> int:
    """Search for the smallest value from which it is compute-bound, or has this MFU."""
    from torchtally.fit.threshold import Goal, ThresholdSearch
    from torchtally.fit.threshold_runs import search_runs
    from torchtally.report.threshold import threshold_report
    from torchtally.runs.protocol import TraceRequest
    from torchtally.timing.targets import roofline

    if options.compute_bound is not None and options.mfu is not None:
        raise UsageError("--compute-bound and --mfu are two questions: give one of them.")
    if len(clusters) > 1:
        raise UsageError("--compute-bound and --mfu are of one --gpu: name one.")
    chip = clusters[0].chip.name
    request = TraceRequest(
        **script,
        gpu=chip,
        steps=options.steps,
        place="",
        max_seconds=options.max_seconds,
        what_ifs=options.what_ifs,
        writes=options.writes,
        network=options.network,
    )
    search = ThresholdSearch(values, Goal(options.compute_bound, options.mfu))
    search_runs(
        search, argument, request, roofline(chip), lambda text: say(text, is_quiet=options.quiet)
    )
    write_report(threshold_report(search, argument.name or "value", chip), options)
    return 0 if search.answer is not None else NOTHING_FITS


def script_of(options: ScriptOptions, gpus: "Cluster") -> dict[str, Any]:
    """What is run, as a probe's request has it: by one rank, where a launcher or several GPUs make
    many.
    """
    from torchtally.tracer.launchers import launch_of

    script = options.script_named('tally fit train.py --vary "--batch_size={}"')
    launch = launch_of(script)
    script = launch.script_of(0) if launch else script
    check_script(script)
    request = {
        "script": script.target,
        "arguments": script.arguments,
        "is_module": script.is_module,
    }
    if launch is None and gpus.count == 1:
        return request
    # It imports torch, which a search on one GPU leaves to its probes.
    from torchtally.tracer.session import world_of

    variables = tuple(launch.environment.items()) if launch else ()
    return request | {"world": world_of(gpus, launch=launch), "variables": variables}


def clusters_named(names: Sequence[str]) -> "list[Cluster]":
    """Each chip once; "all" are those on which CUDA scripts run. Clusters of one size.

    Raises UsageError for clusters of different sizes: the script would run as other ranks.
    """
    from torchtally.chips import Cluster, cluster, known_chips

    if any(name.lower() == "all" for name in names):
        return [Cluster(gpu) for gpu in known_chips() if gpu.is_cuda]
    named = list({each.chip.name: each for each in map(cluster, names)}.values())
    if len({(each.count, 1 if each.count == 1 else each.node_size) for each in named}) > 1:
        raise UsageError(
            f"--gpu {' --gpu '.join(names)}: clusters of different sizes. Give one, or several of "
            "as many GPUs: --gpu 8xH100-SXM --gpu 8xH200-SXM."
        )
    return named
