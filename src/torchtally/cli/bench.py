"""`tally bench`: measure this machine, and keep what was measured for predictions."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.timing.calibration import Calibration
    from torchtally.views.bench import Bench

NAME = "bench"
SUMMARY = "measure this machine: what it achieves of what is promised"

DEVICES = ("auto", "cpu", "cuda")
STORED = ""
"""`--show` without a name."""
CPUINFO = Path("/proc/cpuinfo")
CLEAR_LINE = "\r\x1b[K"

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


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Measure products, attention, memory, copies and the host's issue rate,\n"
        "and print what was achieved beside what the data sheet promises.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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

    progress = Progress(sys.stderr)
    try:
        try:
            return bench("cuda" if device == "auto" else device, is_quick=is_quick, report=progress)
        except UsageError:
            if device != "auto" or progress.has_begun:
                raise
        return bench("cpu", is_quick=is_quick, report=progress)
    finally:
        progress.stop()


class Progress:
    """One line that moves on a terminal; elsewhere a line for each stage."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started_s = clock()
        self._moves = stream.isatty()
        self._stage = ""

    @property
    def has_begun(self) -> bool:
        return bool(self._stage)

    def __call__(self, stage: str, share: float) -> None:
        """Say what is measured now, and what share of the whole is done."""
        from torchtally.units import format_fraction, format_seconds

        elapsed = format_seconds(self._clock() - self._started_s)
        line = f"tally: measuring {stage}, {format_fraction(share)} done, {elapsed}"
        if self._moves:
            self._put(f"{CLEAR_LINE}{line}")
        elif stage != self._stage:
            self._put(f"{line}\n")
        self._stage = stage

    def stop(self) -> None:
        """Take the line away."""
        if self._moves and self.has_begun:
            self._put(CLEAR_LINE)

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads it: no reason to stop measuring
            return


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
