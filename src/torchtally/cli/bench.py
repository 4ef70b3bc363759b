"""`tally bench`: measure this machine, and keep the measurement for predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtally.cli.chip_names import say_variants
from torchtally.cli.output import PageOptions, write_report
from torchtally.cli.streams import say
from torchtally.errors import UsageError
from torchtally.options import CHIP, Form, each, output, own
from torchtally.progress import StatusLine
from torchtally.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtally.timing.calibration import Calibration

SUMMARY = "measure this machine against its data sheet"

DEVICES = ("auto", "cpu", "cuda")
STORED = ""
"""`--show` without a name."""
CPUINFO = Path("/proc/cpuinfo")

EPILOG = """\
examples:
  tally bench                       the GPU where there is one (an H100: 52 s), else the CPU
  tally bench --device cpu          then `tally run train.py --gpu cpu` predicts this CPU's step
  tally bench --resume              go on with a measurement that was interrupted
  tally bench --html bench.html     the same as a page
  tally bench --show                the last measurement, without measuring again
  tally bench --show H100-SXM       the measurement of a chip, or of a calibration file
  tally bench --import trace.json.gz            what torch.profiler measured elsewhere
  tally bench --no-keep -o mine.json --quick

Measurements are kept where predictions find them: below $XDG_DATA_HOME or ~/.local/share, in
torchtally/calibrations, or in the folder that the environment variable TALLY_CALIBRATIONS names.
An interrupted one is kept there, too, for --resume; predictions do not use it.
"""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(PageOptions):
    """Measure products, attention, memory, copies and the host's issue rate, and print them
    beside the peaks of the data sheet.
    """

    device: str = own(
        "--device", "what to measure (default: auto)", choices=each(*DEVICES), default="auto"
    )
    quick: bool = own("--quick", "fewer and smaller shapes")
    resumes: bool = own(
        "--resume", "measure only what the last, interrupted measurement of this device lacks"
    )
    show: str | None = own(
        "--show",
        "measure nothing: print an earlier measurement, the last one or that of CHIP",
        Form("CHIP"),
        nargs="?",
        left_out=STORED,
    )
    imported: tuple[str, ...] = own(
        "--import",
        "measure nothing: learn from a trace of torch.profiler, recorded with shapes "
        "(`tally explain --record`); several can be given, of one chip",
        Form("TRACE"),
        is_repeated=True,
    )
    gpu: str | None = own("--gpu", "with --import: the GPU of a trace that names none", CHIP)
    output: str | None = output("also write the calibration to FILE", makes_folder=True)
    keeps: bool = own(
        "--no-keep", "do not keep the calibration for later predictions", turns_off=True
    )


def command(options: BenchOptions) -> int:
    """Measure or look up, keep, print."""
    from torchtally.report.bench import bench_report
    from torchtally.timing.calibration.stored import load_calibration
    from torchtally.views.bench import bench_view, estimated_float32

    if options.show is not None and options.imported:
        raise UsageError("--show and --import cannot be combined.")
    if options.resumes and options.quick:
        raise UsageError("--resume and --quick cannot be combined: shapes stay as they were.")
    if options.show is not None:
        say_variants([options.show])
        calibration = load_calibration(options.device, options.show)
    elif options.imported:
        calibration = _import_traces(options.imported, options.gpu)
        _keep(calibration, options)
    else:
        calibration = _measure(options)
        _keep(calibration, options)
    view = bench_view(calibration, estimated_float32(calibration, CPUINFO))
    write_report(bench_report(view), options, is_beside_files=True)
    return 0


def _import_traces(paths: "Sequence[str]", gpu: str | None) -> "Calibration":
    """Calibration by traces of one chip, added to what was measured of it before."""
    import datetime

    from torchtally.chips import chip
    from torchtally.runs.explaining import explain
    from torchtally.timing.calibration.imported import calibration_from
    from torchtally.timing.calibration.library import of_chip
    from torchtally.timing.hosts import ESTIMATED_ISSUE

    traces = [explain(path, gpu) for path in paths]
    names = {trace.chip: path for trace, path in zip(traces, paths, strict=True)}
    if len(names) > 1:
        told = ", ".join(f"{path} of {name}" for name, path in names.items())
        raise UsageError(
            f"--import: traces of several chips ({told}). Import the traces of each chip "
            "separately."
        )
    if next(iter(names)) == "CPU":
        raise UsageError(
            "--import: a CPU's trace has no kernels. `tally bench --device cpu` measures a CPU."
        )
    target = chip(next(iter(names)))
    return calibration_from(
        traces,
        target,
        date=datetime.date.today().isoformat(),
        issue=ESTIMATED_ISSUE,
        before=of_chip(target),
    )


def _measure(options: BenchOptions) -> "Calibration":
    """Calibration of a device; of "auto" the GPU, or the CPU where the GPU is refused before
    anything is measured.
    """
    from torchtally.bench.run import bench
    from torchtally.timing.calibration.library import keep

    kept: list[tuple[Path, Calibration]] = []

    def keep_partial(partial: "Calibration") -> None:
        if options.keeps:
            kept.append((keep(partial), partial))

    with StatusLine() as status:
        stages: list[str] = []

        def show(stage: str, share: float) -> None:
            is_new = stage not in stages[-1:]
            stages.append(stage)
            done = f"measuring {stage}, {format_fraction(share)} done"
            status.show(done, share=share, at_once=is_new or status.is_redrawn)

        def measure(device: str) -> "Calibration":
            return bench(
                device,
                is_quick=options.quick,
                report=show,
                keep=keep_partial,
                is_resumed=options.resumes,
            )

        def measure_first_possible() -> "Calibration":
            try:
                return measure("cuda" if options.device == "auto" else options.device)
            except UsageError:
                if options.device != "auto" or stages:
                    raise
            return measure("cpu")

        try:
            return measure_first_possible()
        except KeyboardInterrupt:
            if kept:
                _say_what_is_kept(*kept[-1])
            raise


def _say_what_is_kept(path: Path, partial: "Calibration") -> None:
    say(
        f"tally: interrupted; {len(partial.samples)} measurements are kept in {path}.\n"
        f"Missing: {', '.join(partial.missing)}. `tally bench --resume` measures them."
    )


def _keep(calibration: "Calibration", options: BenchOptions) -> None:
    from torchtally.timing.calibration.file import write
    from torchtally.timing.calibration.library import keep

    if options.output is not None:
        write(calibration, Path(options.output))
    if options.keeps:
        say(f"tally: kept for predictions: {keep(calibration)}")
