"""Calibrations as files: readable JSON, a line for each sample, everything checked when read."""

import re
from pathlib import Path

import msgspec

from torchtally.atomic import write_atomically
from torchtally.errors import UsageError
from torchtally.timing.calibration.calibration import Calibration, Issue
from torchtally.timing.calibration.sample import Sample
from torchtally.trace import Call, Literal, TensorSpec

FORMAT = 1


class _Spec(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    argument: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    storage: int
    is_written: bool
    is_pinned: bool


class _Sample(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    seconds: float
    name: str
    overload: str
    inputs: tuple[_Spec, ...]
    outputs: tuple[_Spec, ...]
    literals: tuple[tuple[str, Literal], ...]
    is_mutating: bool


class _Issue(msgspec.Struct, forbid_unknown_fields=True):
    forward_s: float
    backward_s: float
    optimizer_s: float
    view_s: float
    launch_s: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    device: str
    kind: str
    torch_version: str
    date: str
    memory_bytes: int
    threads: int | None
    peak_flop_per_s: dict[str, float]
    bandwidth_bytes_per_s: float
    first_touch_s_per_byte: float
    issue: _Issue
    conditions: dict[str, str]
    samples: tuple[_Sample, ...]


def text(calibration: Calibration) -> str:
    """The document: a head, then a line for each sample."""
    head = msgspec.json.format(msgspec.json.encode(_head(calibration)), indent=1).decode()
    lines = ",\n".join(
        msgspec.json.encode(_pack(sample)).decode() for sample in calibration.samples
    )
    return f"{head.removesuffix('[]' + chr(10) + '}')}[\n{lines}\n]}}\n"


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
    """Without its samples: a fraction of the time. Raises UsageError as `read` does."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Title)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a calibration: {error}\n{REMEDY}") from error


def read(path: Path) -> Calibration:
    """Raises UsageError for a file that is not a calibration, naming the faulty field."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a calibration: {error}\n{REMEDY}") from error
    if document.format != FORMAT:
        raise UsageError(
            f"{path}: a calibration of format {document.format}; "
            f"this version reads format {FORMAT}.\n"
            f"{REMEDY}"
        )
    if reason := implausible(document):
        raise UsageError(f"{path}: {reason}.\n{REMEDY}")
    return _calibration(document)


REMEDY = "`tally bench` makes a new one."


def implausible(document: _File) -> str:
    """Why the figures cannot be measurements; "" where they can."""
    if "float32" not in document.peak_flop_per_s:
        return "peak_flop_per_s lacks float32"
    for dtype, rate in document.peak_flop_per_s.items():
        if not 0 < rate < 1e20:
            return f"peak_flop_per_s: {dtype}: {rate} FLOP/s is implausible"
    if not 0 < document.bandwidth_bytes_per_s < 1e16:
        return f"bandwidth_bytes_per_s: {document.bandwidth_bytes_per_s} is implausible"
    for number, sample in enumerate(document.samples, 1):
        if not 0 < sample.seconds < 1e5:
            return f"samples: {number} ({sample.name}): took {sample.seconds} s"
    costs = [document.first_touch_s_per_byte, *msgspec.structs.astuple(document.issue)]
    if not all(0 <= cost < 1 for cost in costs):
        return "issue: expected 0 to 1 s per operator"
    return ""


def file_name(device: str, threads: int | None) -> str:
    """A file for each device; of a CPU, for each number of threads."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return f"{name}.json" if threads is None else f"{name}-{threads}-threads.json"


def _head(calibration: Calibration) -> _File:
    return _File(
        FORMAT,
        calibration.device,
        calibration.kind,
        calibration.torch_version,
        calibration.date,
        calibration.memory_bytes,
        calibration.threads,
        dict(calibration.peak_flop_per_s),
        calibration.bandwidth_bytes_per_s,
        calibration.first_touch_s_per_byte,
        _Issue(
            calibration.issue.forward_s,
            calibration.issue.backward_s,
            calibration.issue.optimizer_s,
            calibration.issue.view_s,
            calibration.issue.launch_s,
        ),
        dict(calibration.conditions),
        (),
    )


def _pack(sample: Sample) -> _Sample:
    call = sample.call
    return _Sample(
        float(f"{sample.seconds:.4g}"),
        call.name,
        call.overload,
        tuple(map(_pack_spec, call.inputs)),
        tuple(map(_pack_spec, call.outputs)),
        call.literals,
        call.is_mutating,
    )


def _pack_spec(spec: TensorSpec) -> _Spec:
    return _Spec(
        spec.argument,
        spec.shape,
        spec.stride,
        spec.dtype,
        spec.device,
        spec.storage,
        spec.is_written,
        spec.is_pinned,
    )


def _calibration(document: _File) -> Calibration:
    return Calibration(
        device=document.device,
        kind=document.kind,
        torch_version=document.torch_version,
        date=document.date,
        memory_bytes=document.memory_bytes,
        threads=document.threads,
        peak_flop_per_s=document.peak_flop_per_s,
        bandwidth_bytes_per_s=document.bandwidth_bytes_per_s,
        first_touch_s_per_byte=document.first_touch_s_per_byte,
        issue=Issue(*msgspec.structs.astuple(document.issue)),
        samples=tuple(Sample(_call(sample), sample.seconds) for sample in document.samples),
        conditions=document.conditions,
    )


def _call(sample: _Sample) -> Call:
    return Call(
        name=sample.name,
        overload=sample.overload,
        inputs=tuple(map(_spec, sample.inputs)),
        outputs=tuple(map(_spec, sample.outputs)),
        literals=sample.literals,
        is_mutating=sample.is_mutating,
    )


def _spec(spec: _Spec) -> TensorSpec:
    return TensorSpec(
        spec.argument,
        spec.shape,
        spec.stride,
        spec.dtype,
        spec.device,
        spec.storage,
        spec.is_written,
        spec.is_pinned,
    )
