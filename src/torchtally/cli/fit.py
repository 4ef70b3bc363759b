"""`tally fit`: the largest batch size, or whatever else, that fits a GPU."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import RunParser, add_isolation, check_script, script_named, seconds
from torchtally.cli.chip_names import gpu_or_default, say_variants
from torchtally.cli.installation import check_simulates
from torchtally.cli.output import add_format, write_report
from torchtally.errors import UsageError
from torchtally.options import positive_count
from torchtally.units import parse_fraction

if TYPE_CHECKING:
    from torchtally.chips import Cluster

NAME = "fit"
SUMMARY = "find the largest batch size (or any other number) that fits a GPU"

NOTHING_FITS = 1

EPILOG = """\
Options that tally does not know go to the script; after -- all do:

examples:
  tally fit train.py --vary "--batch_size={}" --gpu H100-SXM
  tally fit fsdp.py --vary "--batch_size={}" --gpu 16x8xH100-SXM
  tally fit train.py --vary "--seq-len {}" --multiple-of 64 --gpu A100-SXM
  tally fit train.py --config a.yaml --vary "train.batch={}" --gpu all
  tally fit --vary "--batch={}" torchrun --nproc-per-node 8 ddp.py
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

Evaluation passes that repeat the two before them take the same memory and are
not executed again; --no-folding executes them all.

Exit code: 0 when there is a value that fits, 1 when not even the smallest does
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


def add_parser(subparsers: "argparse._SubParsersAction[RunParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage='tally fit [options] --vary "--flag={}" SCRIPT [ARGS ...]',
        description="Find the largest value of one of a script's arguments at which a training\n"
        "step fits the memory of a GPU, by running the script on a simulated one.",
        epilog=EPILOG,
    )
    parser.__class__ = FitParser
    add = parser.add_argument
    add("--vary", metavar="ARG", required=True,
        help='the argument of the script, with {} for the number: "--batch_size={}"; in place of '
        "the script's own of that name, if there is one")  # fmt: skip
    add("--gpu", metavar="NAME", action="append", default=[],
        help="the chip, or a cluster of them; several, or `all`, for a table (`tally gpus` lists "
        "them); default: what TALLY_GPU names, else H100-SXM")  # fmt: skip
    add("--from", dest="low", type=positive_count, default=1, metavar="N",
        help="the smallest value (default 1)")  # fmt: skip
    add("--to", dest="high", type=positive_count, default=1 << 20, metavar="N",
        help="the largest value (default 2**20)")  # fmt: skip
    add("--multiple-of", type=positive_count, default=1, metavar="N",
        help="only multiples of N (default 1)")  # fmt: skip
    add("--margin", default="3%", metavar="M",
        help="memory to leave free: a share of the chip's memory (3%%, the default) or a size "
            "(1GiB)")  # fmt: skip
    add("--steps", type=positive_count, default=2, metavar="N",
        help="judge by N training steps (default 2: the first one makes the "
        "optimizer's state)")  # fmt: skip
    add("--jobs", type=positive_count, default=None, metavar="N",
        help="runs at a time (default: one for each core)")  # fmt: skip
    add("--max-seconds", type=seconds, metavar="S",
        help="a run that takes longer counts as failed")  # fmt: skip
    add("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does")
    add("--nonzero-fraction", type=parse_fraction, default=1.0, metavar="F",
        help="as for `tally run`")  # fmt: skip
    add("--placeholder-limit", type=positive_count, default=None, metavar="N",
        help="as for `tally run`")  # fmt: skip
    add("--compile", choices=("inductor", "eager"), default="inductor",
        help="as for `tally run`")  # fmt: skip
    add_isolation(parser, "a folder that is deleted")
    add("--no-folding", action="store_true",
        help="run every pass of the model, even those like earlier ones")  # fmt: skip
    add("--verify", action="store_true",
        help="for several GPUs: run both sides of each answer instead of computing it")  # fmt: skip
    add_format(parser)
    add("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
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
    argument = parse(args.vary)
    names = args.gpu or [gpu_or_default(None, is_quiet=args.quiet)]
    clusters = clusters_named(names)
    script = script_of(args, clusters[0])
    margin = parse_margin(args.margin)
    values = Values(args.low, args.high, args.multiple_of)
    say_variants(args.gpu, is_quiet=args.quiet)
    searches = [search_of(cluster.chip, values, margin) for cluster in clusters]
    searches.sort(key=lambda search: search.chip.total_memory_bytes)
    ours = ProbeRequest(
        **script,
        gpu="",
        steps=args.steps,
        max_seconds=args.max_seconds,
        nonzero_fraction=args.nonzero_fraction,
        placeholder_limit=args.placeholder_limit,
        what_ifs=("compile=off",) if args.compile == "eager" else (),
        folds=not args.no_folding,
        writes=args.writes,
        network=args.network,
    )
    fleet = Fleet(searches, argument, ours)
    progress = FitProgress(fleet, is_quiet=args.quiet)
    place, length = argument.own(ours.arguments)
    if length:
        own = " ".join(ours.arguments[place : place + length])
        progress.say(f"{' '.join(argument.words)} takes the place of {own}")
    survey = Survey(fleet) if len(searches) > 1 and not args.verify else None
    jobs = args.jobs or os.cpu_count() or 1
    with Probes() as runs, progress:
        if survey is not None:
            survey.run(runs, jobs, progress.print_run, progress.waiting)
        fleet.run(runs, jobs, progress.print_run, progress.waiting)
    write_report(fit_report(fleet, survey, margin, args.vary), args, is_beside_files=True)
    if fleet.caveats:
        return GATE_EXIT
    return (
        0 if any(search.bracket and search.bracket.largest for search in searches) else NOTHING_FITS
    )


def script_of(args: argparse.Namespace, gpus: "Cluster") -> dict[str, Any]:
    """What is run, as a probe's request has it: by one rank, where a launcher or several GPUs make
    many.
    """
    from torchtally.tracer.launchers import launch_of

    script = script_named(args, 'tally fit train.py --vary "--batch_size={}"')
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
