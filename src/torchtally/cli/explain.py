"""`tally explain`: the account of a real run, from what a profiler recorded of it."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.chip_names import say_variants
from torchtally.cli.ledgers import STEP, StepSelection
from torchtally.cli.output import ReportOptions, TableOptions, write_report
from torchtally.cli.show import VIEW
from torchtally.options import CHIP, FILE, Form, output, own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtally.ledger import Ledger
    from torchtally.trace import Trace

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


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(TableOptions, ReportOptions):
    """Account for a run that happened: operators, lines and modules with the times that a
    profiler measured, next to what the GPU could do.
    """

    files: tuple[str, ...] = own(
        "FILE",
        "a trace of torch.profiler (JSON, plain or gzipped; several: one of each rank), an export "
        "of Nsight Systems (SQLite, or a folder of Parquet files), or a snapshot of "
        "torch.cuda.memory",
        FILE,
        nargs="*",
        default=(),
    )
    record: bool = own("--record", "print the lines that record such a trace")
    by: str | None = own("--by", "one view in full (tally show --help)", VIEW)
    step: StepSelection | None = own(
        "--step", "totals of step N, of N..M, or of all that was recorded ('all')", STEP
    )
    gpu: str | None = own("--gpu", "the GPU it ran on (default: as the file names it)", CHIP)
    execution_trace: tuple[str, ...] = own(
        "--execution-trace",
        "the arguments of its operators (torch.profiler.ExecutionTraceObserver in the same run); "
        "with several files once for each",
        FILE,
        is_repeated=True,
    )
    against: str | None = own(
        "--against",
        "a simulated run of the same program (tally run -o): where the real one loses time, by "
        "line",
        FILE,
    )
    script: str | None = own(
        "--script", "the same for a script, which is simulated first", Form("COMMAND")
    )
    output: str | None = output("keep the account as a trace")


def command(options: ExplainOptions) -> int:
    """Explain the files. Raises TraceFileError for one that is no profiler's."""
    from torchtally.errors import UsageError

    if options.record:
        print(RECORD, end="")
        return 0
    if not options.files:
        raise UsageError(
            "tally explain: missing trace. Give a file that torch.profiler exported.\n"
            "`tally explain --record` prints the lines that record one."
        )
    if options.filter and options.by is None:
        raise UsageError("--filter needs a view: add --by line, for example.")
    if options.against is not None and options.script is not None:
        raise UsageError("--against and --script both give the prediction: choose one.")
    say_variants([] if options.gpu is None else [options.gpu])
    if is_snapshot(options.files[0]):
        return explain_snapshot(options)
    executions = options.execution_trace or [None] * len(options.files)
    if len(executions) != len(options.files):
        raise UsageError(
            f"{len(options.files)} traces and {len(executions)} execution traces: give one for "
            "each."
        )
    first, *others = read_all(options.files, options.gpu, executions)
    if options.against is not None or options.script is not None:
        return beside(first, options)
    if options.output is not None:
        first.save(options.output)
    ledger = ledger_of(first, others, options)
    from torchtally.report.explained import explained_report
    from torchtally.report.ledger import view_report
    from torchtally.views import by

    if options.by is None:
        write_report(explained_report(ledger, columns=options.columns), options)
        return 0
    table = by(ledger, options.by)
    write_report(view_report(options.chosen(table), ledger), options)
    return 0


def is_snapshot(path: str) -> bool:
    from torchtally.profiles.snapshot import is_pickle

    return is_pickle(path)


def explain_snapshot(options: ExplainOptions) -> int:
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

    if len(options.files) > 1 or options.script is not None:
        raise UsageError(
            "A memory snapshot is explained alone: give one file, and --against a trace if you "
            "like."
        )
    path, gpu = options.files[0], chip(options.gpu).name if options.gpu is not None else ""
    with StatusLine() as line:
        line.show(f"reading {os.path.basename(path)}", at_once=line.is_redrawn)
        trace = trace_of_snapshot(read_snapshot(path), gpu)
        if options.output is not None:
            trace.save(options.output)
        line.show(f"accounting for {len(trace.ops):,} allocations", at_once=line.is_redrawn)
        ledger = account(trace, step="all")
        if options.by is None:
            other = None if options.against is None else account(Trace.load(options.against))
            report = snapshot_report(
                ledger,
                other,
                lambda share: line.show("trying the allocator's settings", share=share),
            )
        else:
            report = view_report(options.chosen(by(ledger, options.by)), ledger)
    write_report(report, options)
    return 0


def beside(trace: "Trace", options: ExplainOptions) -> int:
    """The measured step beside a simulated one."""
    from torchtally.ledger import account
    from torchtally.ledger.joining import beside as joined_with
    from torchtally.ledger.joining import with_lines_of
    from torchtally.report.explained import against_report
    from torchtally.report.ledger import view_report
    from torchtally.timing.targets import known_roofline
    from torchtally.trace import Trace
    from torchtally.views import by

    if options.script is not None:
        from torchtally.runs.explaining import simulate

        other = simulate(options.script, trace.chip)
    else:
        assert options.against is not None
        other = Trace.load(options.against)
    roofline = known_roofline(trace.chip)
    real = account(trace, roofline=roofline, step=options.step)
    predicted = account(other)
    if roofline is not None:
        predicted = predicted.with_predicted_times(roofline)
    predicted, join = joined_with(real, predicted)
    placed = with_lines_of(real.trace, join.pairs)
    if options.output is not None:
        placed.save(options.output)
    real = account(placed, roofline=roofline, step=options.step)
    if options.by is None:
        write_report(against_report(real, predicted, join), options)
    else:
        table = by(real, options.by)
        write_report(view_report(options.chosen(table), real), options)
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


def ledger_of(first: "Trace", others: "list[Trace]", options: ExplainOptions) -> "Ledger":
    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline

    return account(first, roofline=known_roofline(first.chip), step=options.step, peers=others)


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
