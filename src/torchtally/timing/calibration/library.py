"""Library of calibrations: those of this machine's user, and those that came with the package."""

import os
from pathlib import Path

from torchtally.chips import TABLE, Chip, find_chip
from torchtally.chips.processor import processor_name
from torchtally.timing.calibration.calibration import Calibration
from torchtally.timing.calibration.file import file_name, read, title, write

SHIPPED = TABLE.with_name("calibrations")
PLACE = "TALLY_CALIBRATIONS"
"""The environment variable that names another folder for the user's own."""


def folder() -> Path:
    """Folder of the user's calibrations: where the XDG rules say that data goes."""
    if place := os.environ.get(PLACE):
        return Path(place)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "torchtally" / "calibrations"


def keep(calibration: Calibration) -> Path:
    """Store it for later predictions; one of the same device is replaced.

    One that lacks something is stored beside, where no prediction finds it.
    """
    path = folder() / file_name(calibration.device, calibration.threads)
    partial = path.with_suffix(PARTIAL)
    if calibration.missing:
        write(calibration, partial)
        return partial
    write(calibration, path)
    partial.unlink(missing_ok=True)
    return path


PARTIAL = ".partial"


def partial_of(device: str, threads: int | None) -> Calibration | None:
    """What an interrupted measurement kept of this device."""
    path = (folder() / file_name(device, threads)).with_suffix(PARTIAL)
    return read(path) if path.is_file() else None


def of_chip(target: Chip) -> Calibration | None:
    """The user's own of this chip, else the package's, else None. Raises UsageError for a file
    that is not a calibration.
    """
    for path in (*files(folder()), *files(SHIPPED)):
        heading = title(path)
        if heading.kind == "cuda" and find_chip(heading.device) == target:
            return read(path)
    return None


def of_host() -> Calibration | None:
    """The last one of a CPU that the user made, else the package's of a CPU of the same name."""
    mine = [read(file) for file in files(folder()) if title(file).kind == "cpu"]
    if not mine and (name := processor_name()):
        shipped = [(file, title(file)) for file in files(SHIPPED)]
        mine = [read(file) for file, of in shipped if (of.kind, of.device) == ("cpu", name)]
    return max(mine, key=lambda calibration: calibration.date, default=None)


def files(place: Path) -> list[Path]:
    return sorted(place.glob("*.json")) if place.is_dir() else []
