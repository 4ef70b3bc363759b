"""Calibrations as files: readable JSON, a line for each sample, everything checked when read."""

import re
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.errors import UsageError
from torchtally.files.atomic import write_atomically
from torchtally.files.reading import read_bytes
from torchtally.timing.calibration.calibration import FORMAT, Calibration
from torchtally.timing.calibration.sample import Sample
from torchtally.trace.checks import InvalidTraceError, check_calls


def text(calibration: Calibration) -> str:
    """The document: a head, then a line for each sample."""
    head = structs.asdict(calibration) | {"issue": structs.asdict(calibration.issue)}
    samples = ",\n".join(
        msgspec.json.encode(Sample(sample.call, float(f"{sample.seconds:.4g}"))).decode()
        for sample in head.pop("samples")
    )
    opened = msgspec.json.format(msgspec.json.encode(head), indent=1).decode().removesuffix("\n}")
    return f'{opened},\n "samples": [\n{samples}\n]}}\n'


def write(calibration: Calibration, path: Path) -> None:
    """Whole or not at all. Raises UsageError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(str(path), text(calibration).encode())
    except OSError as error:
        raise UsageError(f"{path}: the calibration cannot be written: {error}") from error


class Title(msgspec.Struct):
    """What a calibration is of."""

    kind: str
    device: str


def title(path: Path) -> Title:
    """The file's title without its samples: a fraction of the time, and of any format. Raises
    UsageError, too.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path}: not a calibration: {error}\n{REMEDY}") from error
    return _title(path, status.st_mtime_ns, status.st_size)


@lru_cache
def _title(path: Path, changed_ns: int, size_bytes: int) -> Title:
    """Every simulation asks for it, of every file."""
    return _decode(path, Title)


def read(path: Path) -> Calibration:
    """Raises UsageError for a file that is not a calibration, naming the faulty field."""
    if (version := _decode(path, _Version).format) != FORMAT:
        raise UsageError(
            f"{path}: a calibration of format {version}; "
            f"this version reads format {FORMAT}.\n{REMEDY}"
        )
    calibration = _decode(path, Calibration)
    if reason := implausible(calibration):
        raise UsageError(f"{path}: {reason}.\n{REMEDY}")
    return calibration


class _Version(msgspec.Struct):
    format: int


T = TypeVar("T", Title, _Version, Calibration)


def _decode(path: Path, form: type[T]) -> T:
    try:
        return msgspec.json.decode(read_bytes(path, MOST_BYTES), type=form)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a calibration: {error}\n{REMEDY}") from error


REMEDY = "`tally bench` measures a new one."
MOST_BYTES = 32_000_000
"""Of a calibration: one of a thousand samples has half a megabyte."""


def implausible(calibration: Calibration) -> str:
    """Why the figures cannot be measurements; "" where they can."""
    is_whole = not calibration.missing
    if is_whole and calibration.kind == "cpu" and "float32" not in calibration.peak_flop_per_s:
        return "peak_flop_per_s lacks float32"
    for dtype, rate in calibration.peak_flop_per_s.items():
        if not 0 < rate < 1e20:
            return f"peak_flop_per_s: {dtype}: {rate} FLOP/s is implausible"
    if not 0 < calibration.memory_bytes < 1e18:
        return f"memory_bytes: {calibration.memory_bytes} is implausible"
    if calibration.threads is not None and not 0 < calibration.threads < 1e6:
        return f"threads: {calibration.threads} is implausible"
    if not 0 < calibration.bandwidth_bytes_per_s < 1e16:
        return f"bandwidth_bytes_per_s: {calibration.bandwidth_bytes_per_s} is implausible"
    try:
        check_calls(sample.call for sample in calibration.samples)
    except InvalidTraceError as error:
        return f"samples: {error}"
    for number, sample in enumerate(calibration.samples, 1):
        for spec in (*sample.call.inputs, *sample.call.outputs):
            if spec.dtype not in DTYPE_BYTES:
                return f"samples: {number} ({sample.call.name}): unknown dtype {spec.dtype[:40]!r}"
        if not 0 < sample.seconds < 1e5:
            return f"samples: {number} ({sample.call.name}): took {sample.seconds} s"
    if not 0 <= calibration.reach < 100:
        return f"reach: {calibration.reach} is implausible"
    costs = [calibration.first_touch_s_per_byte, *structs.astuple(calibration.issue)]
    if not all(0 <= cost < 1 for cost in costs):
        return "issue: expected 0 to 1 s per operator"
    return ""


def file_name(device: str, threads: int | None) -> str:
    """A file for each device; of a CPU, for each number of threads."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return f"{name}.json" if threads is None else f"{name}-{threads}-threads.json"
