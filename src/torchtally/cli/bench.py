"""`tally bench`: measure this machine, and keep what was measured for predictions."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers
from torchtally.errors import UsageError
from torchtally.progress import StatusLine
from torchtally.units import format_fraction

if TYPE_CHECKING:
    from torchtally.timing.calibration import Calibration
    from torchtally.views.bench import Bench

NAME = "bench"
SUMMARY = "measure this machine: what it achieves of what is promised"

DEVICES = ("auto", "cpu", "cuda")
STORED = ""
"""`--show` without a name."""
CPUINFO = Path("/proc/cpuinfo")

EPILOG = """\
examples:
  tally bench                       the GPU where there is one, else the CPU; about a minute
  tally bench --device cpu          then `tally run train.py --gpu cpu` predicts this CPU's step
  tally bench --html bench.html     the same as a page
  tally bench --show                what was measured last, without measuring again
  tally bench --show H100-SXM       what was measured of a chip; or of a calibration's file
  tally bench --no-keep -o mine.json --quick

What is measured is kept where predictions find it: below $XDG_DATA_HOME or ~/.local/share, in
torchtally/calibrations, or in the folder that the environment variable TALLY_CALIBRATIONS names.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Measure products, attention, memory, copies and the host's issue rate,\n"
        "and print what was achieved beside what the data sheet promises.",
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
        help="measure nothing: print what was measured before, of the last device or of this one",
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="write the calibration here, too")
    parser.add_argument(
        "--no-keep", action="store_true", help="do not keep it for later predictions"
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="a JSON document instead of text, to FILE or to stdout",
    )
    parser.add_argument("--html", metavar="FILE", help="a page for a browser, to FILE")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Measure or look up, keep, print. Nothing is kept of a measurement that was interrupted."""
    from torchtally.views.bench import bench_view

    if args.show is not None:
        calibration = stored(args.device, args.show)
    else:
        calibration = _measured(args.device, is_quick=args.quick)
        _keep(calibration, args)
    _print(bench_view(calibration, estimated_float32(calibration, CPUINFO)), args)
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


def stored(device: str, name: str) -> "Calibration":
    """What was measured before: of a file, of a chip, or the last one of a device.

    Raises UsageError where there is none, and says where it was looked for.
    """
    from torchtally.chips import chip
    from torchtally.timing.calibration.file import read
    from torchtally.timing.calibration.library import SHIPPED, folder, of_chip

    if name and Path(name).is_file():
        return read(Path(name))
    if name and name.strip().lower() not in DEVICES:
        if (calibration := of_chip(chip(name))) is not None:
            return calibration
        raise UsageError(f"Nobody has measured {name} yet.\n{_places((folder(), SHIPPED))}")
    kind = name.strip().lower() or device
    own = [read(path) for path in _files(folder())]
    fitting = [calibration for calibration in own if kind in ("auto", calibration.kind)]
    if not fitting:
        what = "this machine" if kind == "auto" else f"a device of kind {kind} here"
        raise UsageError(f"Nobody has measured {what} yet.\n{_places((folder(), SHIPPED))}")
    return max(fitting, key=lambda calibration: calibration.date)


def _files(place: Path) -> list[Path]:
    return sorted(place.glob("*.json")) if place.is_dir() else []


def _places(folders: tuple[Path, ...]) -> str:
    """Where calibrations are, and which."""
    lines = ["Run `tally bench` to measure it. Calibrations are looked for in"]
    for place in folders:
        names = [path.name for path in _files(place)]
        lines.append(f"  {place}: {', '.join(names) or 'none there'}")
    return "\n".join(lines)


def estimated_float32(calibration: "Calibration", cpuinfo: Path) -> float | None:
    """FLOP/s that the CPU could do at best; None of another machine's, or where nothing tells."""
    from torchtally.chips.processor import estimated_flop_per_s, model_name

    if calibration.kind != "cpu":
        return None
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return None
    if model_name(text) != calibration.device:
        return None
    return estimated_flop_per_s(text, calibration.threads)


def _print(view: "Bench", args: argparse.Namespace) -> None:
    from torchtally.cli.output import emit, is_coloured, width, write_or_emit
    from torchtally.report.bench import bench_document, bench_page, bench_text
    from torchtally.report.document import dumps
    from torchtally.report.plot import is_ascii

    if args.html is not None:
        write_or_emit(bench_page(view), args.html)
    if args.json is not None:
        write_or_emit(dumps(bench_document(view)), args.json)
    elif args.html != "-":
        colour, ascii_only = is_coloured(sys.stdout), is_ascii(sys.stdout.encoding)
        emit(bench_text(view, width=width(), is_coloured=colour, is_ascii=ascii_only))
