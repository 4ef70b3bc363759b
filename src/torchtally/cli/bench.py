"""`tally bench`: measure this machine, and keep the measurement for predictions."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers
from torchtally.cli.chip_names import say_variants
from torchtally.cli.output import add_format, write_report
from torchtally.errors import UsageError
from torchtally.progress import StatusLine
from torchtally.units import format_fraction

if TYPE_CHECKING:
    from torchtally.timing.calibration import Calibration

NAME = "bench"
SUMMARY = "measure this machine against its data sheet"

DEVICES = ("auto", "cpu", "cuda")
STORED = ""
"""`--show` without a name."""
CPUINFO = Path("/proc/cpuinfo")

EPILOG = """\
examples:
  tally bench                       the GPU where there is one, else the CPU; about a minute
  tally bench --device cpu          then `tally run train.py --gpu cpu` predicts this CPU's step
  tally bench --html bench.html     the same as a page
  tally bench --show                the last measurement, without measuring again
  tally bench --show H100-SXM       the measurement of a chip, or of a calibration file
  tally bench --no-keep -o mine.json --quick

Measurements are kept where predictions find them: below $XDG_DATA_HOME or ~/.local/share, in
torchtally/calibrations, or in the folder that the environment variable TALLY_CALIBRATIONS names.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Measure products, attention, memory, copies and the host's issue rate,\n"
        "and print them beside the peaks of the data sheet.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="what to measure (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller shapes")
    parser.add_argument(
        "--show",
        nargs="?",
        const=STORED,
        metavar="CHIP",
        help="measure nothing: print an earlier measurement, the last one or that of CHIP",
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="write the calibration here, too")
    parser.add_argument(
        "--no-keep", action="store_true", help="do not keep it for later predictions"
    )
    add_format(parser, has_html=True)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Measure or look up, keep, print. Nothing is kept of a measurement that was interrupted."""
    from torchtally.report.bench import bench_report
    from torchtally.timing.calibration.stored import stored
    from torchtally.views.bench import bench_view, estimated_float32

    if args.show is not None:
        say_variants([args.show])
        calibration = stored(args.device, args.show)
    else:
        calibration = _measured(args.device, is_quick=args.quick)
        _keep(calibration, args)
    view = bench_view(calibration, estimated_float32(calibration, CPUINFO))
    write_report(bench_report(view), args, is_beside_files=True)
    return 0


def _measured(device: str, *, is_quick: bool) -> "Calibration":
    """Of "auto" the GPU, or the CPU where the GPU is refused before anything is measured."""
    from torchtally.bench.run import bench

    with StatusLine() as status:
        stages: list[str] = []

        def show(stage: str, share: float) -> None:
            is_new = stage not in stages[-1:]
            stages.append(stage)
            done = f"measuring {stage}, {format_fraction(share)} done"
            status.show(done, share=share, at_once=is_new or status.is_redrawn)

        try:
            return bench("cuda" if device == "auto" else device, is_quick=is_quick, report=show)
        except UsageError:
            if device != "auto" or stages:
                raise
        return bench("cpu", is_quick=is_quick, report=show)


def _keep(calibration: "Calibration", args: argparse.Namespace) -> None:
    from torchtally.timing.calibration.file import write
    from torchtally.timing.calibration.library import keep

    if args.output is not None:
        write(calibration, Path(args.output))
    if not args.no_keep:
        print(f"tally: kept for predictions: {keep(calibration)}", file=sys.stderr)
