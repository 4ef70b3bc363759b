"""`tally explain`: the account of a real run, from what a profiler recorded of it."""

import argparse
import os
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers
from torchtally.cli.chip_names import say_variants
from torchtally.cli.destination import add_output
from torchtally.cli.output import add_columns, add_filter, add_format, choose, write_report
from torchtally.cli.show import step_selection, view_names
from torchtally.options import one_of, positive_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtally.ledger import Ledger
    from torchtally.trace import Trace

NAME = "explain"
SUMMARY = "account for a real run from a profiler's trace: where its time went"

EPILOG = """\
examples:
  tally explain trace.json.gz                   what torch.profiler exported
  tally explain trace.json.gz --by op           any view that `tally show` has, measured
  tally explain trace.json.gz --gpu A100-SXM-40GB       where the driver's name is not known
  tally explain trace.json.gz -o real.tally     keep the account, for `tally show` and `export`
  tally explain trace.json.gz --against run.tally       beside what `tally run -o` predicted
  tally explain trace.json.gz --script "train.py --batch=8"     the same: runs it first
  tally explain trace.json --execution-trace et.json    with its operators' exact arguments
  tally explain report.sqlite                   Nsight Systems: nsys export --type sqlite
  tally explain snapshot.pickle                 who holds the memory at the peak
  tally explain snapshot.pickle --against run.tally
  tally explain --record                        the lines that record a trace worth explaining
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Account for a run that happened: operators, lines and modules with the times "
        "that a profiler measured, next to what the GPU could do.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="a trace of torch.profiler (JSON, plain or gzipped; several: one of each rank), an "
        "export of Nsight Systems (SQLite, or a folder of Parquet files), or a snapshot of "
        "torch.cuda.memory",
    )
    parser.add_argument(
        "--record", action="store_true", help="print the lines that record such a trace"
    )
    parser.add_argument(
        "--by", type=one_of(view_names), metavar="VIEW", help="one view in full (tally show --help)"
    )
    parser.add_argument(
        "--step",
        type=step_selection,
        metavar="N",
        help="totals of step N, of FIRST..LAST, or of all that was recorded ('all')",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="the GPU it ran on (default: as the file names it)"
    )
    parser.add_argument(
        "--execution-trace",
        metavar="FILE",
        action="append",
        default=[],
        help="the arguments of its operators (torch.profiler.ExecutionTraceObserver in the same "
        "run); with several files once for each",
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="a simulated run of the same program (tally run -o): "
        "where the real one loses time, by line",
    )
    parser.add_argument(
        "--script", metavar="COMMAND", help="the same for a script, which is simulated first"
    )
    add_output(parser, "-o", "--output", metavar="FILE", help="keep the account as a trace")
    add_columns(parser)
    parser.add_argument("--sort", metavar="COLUMN", help="with --by: largest first by this column")
    add_filter(parser)
    parser.add_argument("--top", type=positive_count, metavar="N", help="only the first N rows")
    add_format(parser)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Explain the files. Raises TraceFileError for one that is no profiler's."""
    from torchtally.errors import UsageError

    if args.record:
        print(RECORD, end="")
        return 0
    if not args.files:
        raise UsageError(
            "tally explain: missing trace. Give a file that torch.profiler exported.\n"
            "`tally explain --record` prints the lines that record one."
        )
    if args.filter and args.by is None:
        raise UsageError("--filter needs a view: add --by line, for example.")
    if args.against is not None and args.script is not None:
        raise UsageError("--against and --script both give the prediction: choose one.")
    say_variants([] if args.gpu is None else [args.gpu])
    if is_snapshot(args.files[0]):
        return explain_snapshot(args)
    executions = args.execution_trace or [None] * len(args.files)
    if len(executions) != len(args.files):
        raise UsageError(
            f"{len(args.files)} traces and {len(executions)} execution traces: give one for each."
        )
    first, *others = read_all(args.files, args.gpu, executions)
    if args.against is not None or args.script is not None:
        return beside(first, args)
    if args.output is not None:
        first.save(args.output)
    ledger = ledger_of(first, others, args)
    from torchtally.report.explained import explained_report
    from torchtally.report.ledger import view_report
    from torchtally.views import by

    if args.by is None:
        write_report(explained_report(ledger, columns=args.columns), args)
        return 0
    table = by(ledger, args.by)
    write_report(view_report(choose(table, args), ledger), args)
    return 0


def is_snapshot(path: str) -> bool:
    from torchtally.profiles.snapshot import is_pickle

    return is_pickle(path)


def explain_snapshot(args: argparse.Namespace) -> int:
    """The account of an allocator's history."""
    from torchtally.chips import chip
    from torchtally.errors import UsageError
    from torchtally.ledger import account
    from torchtally.profiles.history import trace_of_snapshot
    from torchtally.profiles.snapshot import read_snapshot
    from torchtally.progress import StatusLine
    from torchtally.report.ledger import view_report
    from torchtally.report.snapshot import snapshot_report
    from torchtally.trace import Trace
    from torchtally.views import by

    if len(args.files) > 1 or args.script is not None:
        raise UsageError(
            "A memory snapshot is explained alone: give one file, and --against a trace if you "
            "like."
        )
    path, gpu = args.files[0], chip(args.gpu).name if args.gpu is not None else ""
    with StatusLine() as line:
        line.show(f"reading {os.path.basename(path)}", at_once=line.is_redrawn)
        trace = trace_of_snapshot(read_snapshot(path), gpu)
        if args.output is not None:
            trace.save(args.output)
        line.show(f"accounting for {len(trace.ops):,} allocations", at_once=line.is_redrawn)
        ledger = account(trace, step="all")
        if args.by is None:
            other = None if args.against is None else account(Trace.load(args.against))
            report = snapshot_report(
                ledger,
                other,
                lambda share: line.show("trying the allocator's settings", share=share),
            )
        else:
            report = view_report(choose(by(ledger, args.by), args), ledger)
    write_report(report, args)
    return 0


def beside(trace: "Trace", args: argparse.Namespace) -> int:
    """The measured step beside a simulated one."""
    from torchtally.ledger import account
    from torchtally.ledger.joining import beside as joined_with
    from torchtally.ledger.joining import with_lines_of
    from torchtally.report.explained import against_report
    from torchtally.report.ledger import view_report
    from torchtally.timing.targets import known_roofline
    from torchtally.trace import Trace
    from torchtally.views import by

    if args.script is not None:
        from torchtally.runs.explaining import simulate

        other = simulate(args.script, trace.chip)
    else:
        other = Trace.load(args.against)
    roofline = known_roofline(trace.chip)
    real = account(trace, roofline=roofline, step=args.step)
    predicted = account(other)
    if roofline is not None:
        predicted = predicted.with_predicted_times(roofline)
    predicted, join = joined_with(real, predicted)
    placed = with_lines_of(real.trace, join.pairs)
    if args.output is not None:
        placed.save(args.output)
    real = account(placed, roofline=roofline, step=args.step)
    if args.by is None:
        write_report(against_report(real, predicted, join), args)
    else:
        table = by(real, args.by)
        write_report(view_report(choose(table, args), real), args)
    return 0


def read_all(
    files: "Sequence[str]", gpu: str | None, executions: "Sequence[str | None]"
) -> "list[Trace]":
    """The traces of one run's ranks."""
    from torchtally.runs.explaining import check_ranks

    pairs = zip(files, executions, strict=True)
    traces = [read(path, gpu, execution) for path, execution in pairs]
    check_ranks(files, traces)
    return traces


def read(path: str, gpu: str | None, execution: str | None) -> "Trace":
    """A profiler's file as a trace; the work is done where torch is."""
    from torchtally.progress import StatusLine
    from torchtally.runs.explaining import explain

    name = os.path.basename(path)
    with StatusLine() as line:
        return explain(
            path, gpu, execution, lambda share: line.show(f"reading {name}", share=share)
        )


def ledger_of(first: "Trace", others: "list[Trace]", args: argparse.Namespace) -> "Ledger":
    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline

    return account(first, roofline=known_roofline(first.chip), step=args.step, peers=others)


RECORD = """\
# Around the training loop: three steps are left to warm up, two are recorded.
with torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=1, warmup=2, active=2),
    on_trace_ready=lambda prof: prof.export_chrome_trace("trace.json.gz"),
    record_shapes=True, with_stack=True, profile_memory=True, with_modules=True,
) as prof:
    for batch in loader:
        ...  # forward, backward, optimizer.step()
        prof.step()
# then: tally explain trace.json.gz
#
# record_shapes: what operators computed, hence FLOPs, bytes and what bound them.
# with_stack, with_modules: which function and module called them; slows the host 2 to 5 times,
#   so read launch-bound stretches from a trace without them.
# profile_memory: the allocator's peak.
#
# Nsight Systems, with operators and their sizes:
#   with torch.autograd.profiler.emit_nvtx(record_shapes=True): ...  # around two steps
#   nsys profile --trace=cuda,nvtx -o report python train.py
#   nsys export --type sqlite report.nsys-rep       # then: tally explain report.sqlite
#
# torch.profiler, in one line: `with torchtally.record("trace.json.gz") as step: ... step()`.
"""
