"""Calibrations that were stored before: of a file, of a chip, or the last of a kind of device."""

from pathlib import Path

from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.timing.calibration import Calibration
from torchtally.timing.calibration.file import read
from torchtally.timing.calibration.library import SHIPPED, files, folder, of_chip

KINDS = ("auto", "cpu", "cuda")


def load_calibration(device: str, name: str) -> Calibration:
    """What was measured before: of a file, of a chip, or the last one of a device.

    Raises UsageError, naming the folders searched, where there is none.
    """
    if name and Path(name).is_file():
        return read(Path(name))
    if name and name.strip().lower() not in KINDS:
        if (calibration := of_chip(chip(name))) is not None:
            return calibration
        raise UsageError(f"No measurement of {name} yet.\n{_places((folder(), SHIPPED))}")
    kind = name.strip().lower() or device
    own = [read(path) for path in files(folder())]
    fitting = [calibration for calibration in own if kind in ("auto", calibration.kind)]
    if not fitting:
        what = "this machine" if kind == "auto" else f"a device of kind {kind} here"
        raise UsageError(f"No measurement of {what} yet.\n{_places((folder(), SHIPPED))}")
    return max(fitting, key=lambda calibration: calibration.date)


def _places(folders: tuple[Path, ...]) -> str:
    """Folders of calibrations, in words."""
    lines = ["Run `tally bench` to measure it. Calibrations are looked for in"]
    for place in folders:
        names = [path.name for path in files(place)]
        lines.append(f"  {place}: {', '.join(names) or 'none there'}")
    return "\n".join(lines)
