r"""A trace as a file: one line a person can read, then its tables, packed.

    torchtally trace format=3 packed=48211 body=812345 blake2b=5f1d...\n
    <zlib of a msgpack map: tables of frames, sites and calls, then one list per column>

Every op refers to its call and site by number, so what a million ops share is stored once. The
line gives the sizes and a digest of what follows: a file cut short or changed by a single byte is
refused, never half read. A file from elsewhere is not trusted: sizes are bounded before memory is
given to them, types are checked by msgspec, every number that points into a table is checked to
lie in it, and nothing read is ever imported or run.
"""

import math
import os
import re
import zlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from typing import Generic, NoReturn, TypeVar

import msgspec

from torchtally.atomic import write_atomically
from torchtally.errors import TraceFileError
from torchtally.trace.columns import collection_paused, records
from torchtally.trace.op import Call, Frame, Op, Phase, Site, TensorSpec
from torchtally.trace.storage import Role, Storage
from torchtally.trace.trace import (
    CacheEmptied,
    Ending,
    Note,
    Placeholder,
    Refusal,
    Reserved,
    Trace,
)

FORMAT = 3
MAGIC = b"torchtally trace "
HEADER = re.compile(
    rb"torchtally trace format=([0-9]{1,6}) packed=([0-9]{1,12}) body=([0-9]{1,12})"
    rb" blake2b=([0-9a-f]{32})\n"
)
HEADER_LIMIT_BYTES = 200
BODY_LIMIT_BYTES = 1 << 30
"""About 30 million operators; more is refused, so that a small file cannot ask for all memory."""
TICK_LIMIT = 1 << 53
"""Ticks stay exact in any reader, JavaScript's numbers included."""

ELEMENT_LIMIT = (1 << 63) - 1
"""torch counts a tensor's elements in an int64."""

Scalar = int | bool | str | None


class _Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A row of a small table, packed without the names of its fields."""


class _Frame(_Row):
    file: str
    line: int
    function: str
    text: str
    is_own: bool


class _Site(_Row):
    module: str
    module_class: str
    frames: list[int]


class _Spec(_Row):
    argument: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    storage: int
    is_written: bool
    is_pinned: bool


class _Call(_Row):
    name: str
    overload: str
    inputs: list[int]
    outputs: list[int]
    literals: list[tuple[str, Scalar | tuple[Scalar, ...]]]
    is_mutating: bool


class _Placeholder(_Row):
    frame: int
    op: str
    given: str
    count: int


class _Note(_Row):
    text: str
    count: int


class _Reserved(_Row):
    device: int
    tick: int
    bytes: int


class _CacheEmptied(_Row):
    device: int
    tick: int


class _Refusal(_Row):
    device: int
    tick: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    site: int
    message: str


class _Ops(msgspec.Struct, forbid_unknown_fields=True):
    """One list per column. An op names as many storages as its call has tensors."""

    clock_steps: list[int]
    call: list[int]
    site: list[int]
    phase: list[int]
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]


class _Storages(msgspec.Struct, forbid_unknown_fields=True):
    device: list[int]
    requested_bytes: list[int]
    born: list[int]
    died: list[int]
    role: list[int]
    name: list[int]
    stream: list[int]
    spare_bytes: list[int]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    script: str
    chip: str
    torch_version: str
    ending: tuple[str, str]
    host_ops: int
    facts: dict[str, str]
    step_ends: list[int]
    texts: list[str]
    frames: list[_Frame]
    sites: list[_Site]
    specs: list[_Spec]
    calls: list[_Call]
    placeholders: list[_Placeholder]
    notes: list[_Note]
    reserved: list[_Reserved]
    emptied: list[_CacheEmptied]
    refusals: list[_Refusal]
    waits: list[int]
    allocator_settings: str
    ops: _Ops
    storages: _Storages


PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER)
ROLES = (
    None,
    Role.PARAMETER,
    Role.BUFFER,
    Role.GRADIENT,
    Role.OPTIMIZER_STATE,
    Role.WORKSPACE,
)

Value = TypeVar("Value", bound=Hashable)
Other = TypeVar("Other")


# Writing ---------------------------------------------------------------------------------------


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to `path`, whole or not at all: an older file there stays until then.

    Raises TraceFileError when the place cannot be written to.
    """
    with collection_paused():
        body = msgspec.msgpack.encode(_pack(trace))
    if len(body) > BODY_LIMIT_BYTES:
        raise TraceFileError(
            f"{os.fspath(path)}: {len(trace.ops)} operators are too many for one trace file.\n"
            "Trace fewer steps: --steps 2."
        )
    packed = zlib.compress(body, 1)
    header = _header(FORMAT, len(packed), len(body), _digest(packed))
    try:
        write_atomically(os.fspath(path), header, packed)
    except OSError as error:
        raise TraceFileError(
            f"{os.fspath(path)}: the trace could not be written ({error.strerror or error}).\n"
            "Choose another place with -o FILE."
        ) from error


def _header(version: int, packed_bytes: int, body_bytes: int, digest: bytes) -> bytes:
    sizes = b"format=%d packed=%d body=%d" % (version, packed_bytes, body_bytes)
    return MAGIC + sizes + b" blake2b=" + digest + b"\n"


def _digest(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=16).hexdigest().encode()


class _Table(Generic[Value]):
    """Numbers for values: equal values get the same number, in order of first appearance."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._number_of_value: dict[Value, int] = {}
        self._number_of_id: dict[int, int] = {}

    def number(self, value: Value) -> int:
        """The number of a value. Its identity is tried first: that spares hashing a whole call."""
        number = self._number_of_id.get(id(value))
        if number is None:
            number = self._number_of_value.setdefault(value, len(self.values))
            if number == len(self.values):
                self.values.append(value)
            self._number_of_id[id(value)] = number
        return number


def _pack(trace: Trace) -> _Body:
    texts: _Table[str] = _Table()
    frames: _Table[Frame] = _Table()
    sites: _Table[Site] = _Table()
    specs: _Table[TensorSpec] = _Table()
    calls: _Table[Call] = _Table()
    op_columns = _pack_ops(trace.ops, calls, sites)
    storage_columns = _pack_storages(trace.storages, texts)
    placeholders = [_pack_placeholder(placeholder, frames) for placeholder in trace.placeholders]
    refusals = [_pack_refusal(refusal, texts, sites) for refusal in trace.refusals]
    reserved = [
        _Reserved(texts.number(reserved.device), reserved.tick, reserved.bytes)
        for reserved in trace.reserved
    ]
    emptied = [
        _CacheEmptied(texts.number(emptied.device), emptied.tick) for emptied in trace.emptied
    ]
    site_rows = [_pack_site(site, frames) for site in sites.values]
    call_rows = [_pack_call(call, specs) for call in calls.values]
    return _Body(
        script=_encodable(trace.script),
        chip=_encodable(trace.chip),
        torch_version=_encodable(trace.torch_version),
        ending=(trace.ending.kind, _encodable(trace.ending.message)),
        host_ops=trace.host_ops,
        facts={_encodable(key): _encodable(value) for key, value in trace.facts.items()},
        step_ends=list(trace.step_ends),
        texts=[_encodable(text) for text in texts.values],
        frames=[_pack_frame(frame) for frame in frames.values],
        sites=site_rows,
        specs=[_pack_spec(spec) for spec in specs.values],
        calls=call_rows,
        placeholders=placeholders,
        notes=[_Note(_encodable(note.text), note.count) for note in trace.notes],
        reserved=reserved,
        emptied=emptied,
        refusals=refusals,
        waits=list(trace.waits),
        allocator_settings=_encodable(trace.allocator_settings),
        ops=op_columns,
        storages=storage_columns,
    )


def _pack_ops(ops: Sequence[Op], calls: _Table[Call], sites: _Table[Site]) -> _Ops:
    for op in ops:
        call = op.call
        assert len(op.inputs) == len(call.inputs), f"op {op.clock}: a storage per input"
        assert len(op.outputs) == len(call.outputs), f"op {op.clock}: a storage per output"
    clocks = [op.clock for op in ops]
    phase_number = {phase: number for number, phase in enumerate(PHASES)}
    return _Ops(
        clock_steps=[after - before for before, after in pairwise([0, *clocks])],
        call=[calls.number(op.call) for op in ops],
        site=[sites.number(op.site) for op in ops],
        phase=[phase_number[op.phase] for op in ops],
        inputs=[op.inputs for op in ops],
        outputs=[op.outputs for op in ops],
    )


def _pack_storages(storages: Sequence[Storage], texts: _Table[str]) -> _Storages:
    role_number = {role: number for number, role in enumerate(ROLES)}
    return _Storages(
        device=[texts.number(storage.device) for storage in storages],
        requested_bytes=[storage.requested_bytes for storage in storages],
        born=[storage.born for storage in storages],
        died=[-1 if storage.died is None else storage.died for storage in storages],
        role=[role_number[storage.role] for storage in storages],
        name=[texts.number(storage.name) for storage in storages],
        stream=[storage.stream for storage in storages],
        spare_bytes=[storage.spare_bytes for storage in storages],
    )


def _pack_placeholder(placeholder: Placeholder, frames: _Table[Frame]) -> _Placeholder:
    frame = -1 if placeholder.frame is None else frames.number(placeholder.frame)
    return _Placeholder(
        frame, _encodable(placeholder.op), _encodable(placeholder.given), placeholder.count
    )


def _pack_refusal(refusal: Refusal, texts: _Table[str], sites: _Table[Site]) -> _Refusal:
    return _Refusal(
        texts.number(refusal.device),
        refusal.tick,
        refusal.requested_bytes,
        refusal.allocated_bytes,
        refusal.reserved_bytes,
        refusal.free_bytes,
        sites.number(refusal.site),
        _encodable(refusal.message),
    )


def _pack_site(site: Site, frames: _Table[Frame]) -> _Site:
    numbers = [frames.number(frame) for frame in site.frames]
    return _Site(_encodable(site.module), _encodable(site.module_class), numbers)


def _pack_frame(frame: Frame) -> _Frame:
    function, text = _encodable(frame.function), _encodable(frame.text)
    return _Frame(_encodable(frame.file), frame.line, function, text, frame.is_own)


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


def _pack_call(call: Call, specs: _Table[TensorSpec]) -> _Call:
    return _Call(
        call.name,
        call.overload,
        [specs.number(spec) for spec in call.inputs],
        [specs.number(spec) for spec in call.outputs],
        [(name, _encodable_literal(value)) for name, value in call.literals],
        call.is_mutating,
    )


def _encodable_literal(
    value: Scalar | tuple[Scalar, ...],
) -> Scalar | tuple[Scalar, ...]:
    return _encodable(value) if isinstance(value, str) else value


def _encodable(text: str) -> str:
    r"""The text, its lone surrogates (a file name that is not UTF-8) spelled out as ``\udcff``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


# Reading ---------------------------------------------------------------------------------------


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file. Raises TraceFileError when there is none, or it is not whole."""
    name = os.fspath(path)
    body = _read_body(name)
    with _refused_as_corrupted(name), collection_paused():
        return _unpack(msgspec.msgpack.decode(body, type=_Body))


def _read_body(name: str) -> bytes:
    try:
        with open(name, "rb") as stream:
            header = stream.readline(HEADER_LIMIT_BYTES)
            packed_bytes, body_bytes, digest = _parse_header(name, header)
            packed = stream.read(packed_bytes + 1)
    except FileNotFoundError:
        raise TraceFileError(
            f"{name}: no such file.\nMake a trace with: tally run SCRIPT --gpu NAME -o {name}"
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TraceFileError(f"{name}: cannot be read ({why or error}).") from error
    if len(packed) < packed_bytes:
        raise _cut_short(name, f"{len(packed)} of {packed_bytes} bytes are there")
    if len(packed) > packed_bytes:
        raise _corrupted(name, "there is more in it than was written")
    if _digest(packed) != digest:
        raise _corrupted(name, "its checksum does not match")
    return _unpacked(name, packed, body_bytes)


def _parse_header(name: str, header: bytes) -> tuple[int, int, bytes]:
    """Packed bytes, bytes of the body, digest. Raises TraceFileError for anything unexpected."""
    if not header.startswith(MAGIC):
        if MAGIC.startswith(header):
            raise _cut_short(name, f"only {len(header)} bytes are there")
        raise TraceFileError(
            f"{name}: not a trace of torchtally.\n"
            "A trace is what `tally run SCRIPT -o FILE` writes, and begins with 'torchtally trace'."
        )
    version = re.match(rb"format=([0-9]{1,6}) ", header[len(MAGIC) :])
    if version is not None:
        _check_version(name, int(version[1]))
    match = HEADER.fullmatch(header)
    if match is None and not header.endswith(b"\n") and len(header) < HEADER_LIMIT_BYTES:
        raise _cut_short(name, "its first line is not whole")
    if match is None:
        raise _corrupted(name, "its first line is damaged")
    packed_bytes, body_bytes = int(match[2]), int(match[3])
    if header != _header(FORMAT, packed_bytes, body_bytes, match[4]):
        raise _corrupted(name, "its first line is damaged")
    if max(packed_bytes, body_bytes) > BODY_LIMIT_BYTES:
        raise _corrupted(name, f"it claims to hold more than {BODY_LIMIT_BYTES >> 20} MiB")
    return packed_bytes, body_bytes, match[4]


def _check_version(name: str, version: int) -> None:
    if version > FORMAT:
        raise TraceFileError(
            f"{name}: made by a newer torchtally (format {version}, this one reads {FORMAT}).\n"
            "Upgrade: pip install --upgrade torchtally"
        )
    if version < FORMAT:
        raise TraceFileError(
            f"{name}: its format {version} is not one this torchtally reads (format {FORMAT}).\n"
            "Make the trace again with `tally run`."
        )


def _unpacked(name: str, packed: bytes, body_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, body_bytes + 1)
    except zlib.error:
        raise _corrupted(name, "it cannot be unpacked") from None
    if len(body) != body_bytes or not stream.eof or stream.unused_data:
        raise _corrupted(name, "its size is not the one it claims")
    return body


def _cut_short(name: str, what: str) -> TraceFileError:
    return TraceFileError(
        f"{name}: the trace is cut short: {what}.\n"
        "Copy it again, or make it again with `tally run`."
    )


def _corrupted(name: str, why: str) -> TraceFileError:
    return TraceFileError(
        f"{name}: the trace is corrupted: {why}.\nCopy it again, or make it again with `tally run`."
    )


@contextmanager
def _refused_as_corrupted(name: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, _InvalidError, UnicodeError, RecursionError) as error:
        raise _corrupted(name, str(error)) from None


class _InvalidError(Exception):
    """A table that does not hold together. The message says which."""


def _invalid(why: str) -> NoReturn:
    raise _InvalidError(why)


def _unpack(body: _Body) -> Trace:
    frames = [
        Frame(frame.file, frame.line, frame.function, frame.text, frame.is_own)
        for frame in body.frames
    ]
    sites = [
        Site(site.module, site.module_class, tuple(_pick(frames, site.frames, "frame")))
        for site in body.sites
    ]
    specs = [_unpack_spec(spec) for spec in body.specs]
    calls = [_unpack_call(call, specs) for call in body.calls]
    storages = _unpack_storages(body.storages, body.texts)
    ops = _unpack_ops(body.ops, calls, sites, len(storages))
    _check_steps(body.step_ends)
    _check_waits(body.waits)
    _check_counts([body.host_ops], "host operators")
    return Trace(
        script=body.script,
        chip=body.chip,
        torch_version=body.torch_version,
        ops=tuple(ops),
        storages=tuple(storages),
        step_ends=tuple(body.step_ends),
        ending=Ending(*body.ending),
        placeholders=tuple(
            _unpack_placeholder(placeholder, frames) for placeholder in body.placeholders
        ),
        notes=tuple(Note(note.text, note.count) for note in body.notes),
        reserved=tuple(_unpack_reserved(reserved, body.texts) for reserved in body.reserved),
        emptied=tuple(_unpack_emptied(emptied, body.texts) for emptied in body.emptied),
        refusals=tuple(_unpack_refusal(refusal, body.texts, sites) for refusal in body.refusals),
        waits=tuple(body.waits),
        allocator_settings=body.allocator_settings,
        host_ops=body.host_ops,
        facts=body.facts,
    )


def _unpack_spec(spec: _Spec) -> TensorSpec:
    if len(spec.shape) != len(spec.stride) or min(spec.shape, default=0) < 0:
        _invalid("a tensor's shape and strides do not match")
    if math.prod(spec.shape) > ELEMENT_LIMIT:
        _invalid("a tensor has more elements than can be numbered")
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


def _unpack_call(call: _Call, specs: Sequence[TensorSpec]) -> Call:
    return Call(
        call.name,
        call.overload,
        tuple(_pick(specs, call.inputs, "tensor")),
        tuple(_pick(specs, call.outputs, "tensor")),
        tuple(call.literals),
        call.is_mutating,
    )


def _unpack_placeholder(placeholder: _Placeholder, frames: Sequence[Frame]) -> Placeholder:
    _check_counts([placeholder.count], "placeholders")
    frame = None if placeholder.frame == -1 else _pick(frames, [placeholder.frame], "frame")[0]
    return Placeholder(frame, placeholder.op, placeholder.given, placeholder.count)


def _unpack_reserved(reserved: _Reserved, texts: Sequence[str]) -> Reserved:
    _check_ticks([reserved.tick])
    _check_counts([reserved.bytes], "reserved bytes")
    return Reserved(_pick(texts, [reserved.device], "text")[0], reserved.tick, reserved.bytes)


def _unpack_emptied(emptied: _CacheEmptied, texts: Sequence[str]) -> CacheEmptied:
    _check_ticks([emptied.tick])
    return CacheEmptied(_pick(texts, [emptied.device], "text")[0], emptied.tick)


def _unpack_refusal(refusal: _Refusal, texts: Sequence[str], sites: Sequence[Site]) -> Refusal:
    _check_ticks([refusal.tick])
    sizes = [
        refusal.requested_bytes,
        refusal.allocated_bytes,
        refusal.reserved_bytes,
        refusal.free_bytes,
    ]
    _check_counts(sizes, "bytes")
    return Refusal(
        device=_pick(texts, [refusal.device], "text")[0],
        tick=refusal.tick,
        requested_bytes=refusal.requested_bytes,
        allocated_bytes=refusal.allocated_bytes,
        reserved_bytes=refusal.reserved_bytes,
        free_bytes=refusal.free_bytes,
        site=_pick(sites, [refusal.site], "site")[0],
        message=refusal.message,
    )


def _unpack_ops(
    table: _Ops, calls: Sequence[Call], sites: Sequence[Site], storages: int
) -> list[Op]:
    count = len(table.call)
    columns = (table.clock_steps, table.site, table.phase, table.inputs, table.outputs)
    if any(len(column) != count for column in columns):
        _invalid("the columns of the operators differ in length")
    if min(table.clock_steps[1:], default=1) < 1 or min(table.clock_steps[:1], default=0) < 0:
        _invalid("the clock runs backwards")
    clocks = list(accumulate(table.clock_steps))
    _check_ticks(clocks[-1:])
    op_calls = _pick(calls, table.call, "call")
    _check_storages(
        table.inputs, _pick([len(call.inputs) for call in calls], table.call, "call"), storages
    )
    _check_storages(
        table.outputs, _pick([len(call.outputs) for call in calls], table.call, "call"), storages
    )
    op_sites = _pick(sites, table.site, "site")
    op_phases = _pick(PHASES, table.phase, "phase")
    return records(Op, clocks, op_calls, op_sites, op_phases, table.inputs, table.outputs)


def _check_storages(column: list[tuple[int, ...]], arities: list[int], storages: int) -> None:
    if list(map(len, column)) != arities:
        _invalid("the operators' storages do not match their calls")
    numbers = list(chain.from_iterable(column))
    if numbers and not (min(numbers) >= -1 and max(numbers) < storages):
        _invalid("an operator names a storage that is not there")


def _unpack_storages(table: _Storages, texts: Sequence[str]) -> list[Storage]:
    count = len(table.device)
    columns = (
        table.requested_bytes,
        table.born,
        table.died,
        table.role,
        table.name,
        table.stream,
        table.spare_bytes,
    )
    if any(len(column) != count for column in columns):
        _invalid("the columns of the storages differ in length")
    _check_counts(table.requested_bytes, "bytes")
    _check_counts(table.spare_bytes, "spare bytes")
    _check_ticks(table.born)
    if table.died and not (min(table.died) >= -1 and max(table.died) <= TICK_LIMIT):
        _invalid("a storage dies at no tick")
    return records(
        Storage,
        range(count),
        _pick(texts, table.device, "text"),
        table.requested_bytes,
        table.born,
        [None if tick == -1 else tick for tick in table.died],
        _pick(ROLES, table.role, "role"),
        _pick(texts, table.name, "text"),
        table.stream,
        table.spare_bytes,
    )


def _pick(values: Sequence[Other], numbers: list[int], what: str) -> list[Other]:
    """The values of those numbers. Raises _InvalidError for a number that is not in the table."""
    if numbers and not (min(numbers) >= 0 and max(numbers) < len(values)):
        _invalid(f"a {what} is referred to that is not there")
    return list(map(values.__getitem__, numbers))


def _check_counts(counts: list[int], what: str) -> None:
    if min(counts, default=0) < 0:
        _invalid(f"fewer than no {what}")


def _check_ticks(ticks: list[int]) -> None:
    if ticks and not (min(ticks) >= 0 and max(ticks) <= TICK_LIMIT):
        _invalid("something happens at no tick")


def _check_steps(ends: list[int]) -> None:
    _check_ticks(ends)
    if any(after < before for before, after in pairwise(ends)):
        _invalid("the steps are not in order")


def _check_waits(ticks: list[int]) -> None:
    _check_ticks(ticks)
    if any(after <= before for before, after in pairwise(ticks)):
        _invalid("the moments at which the host waited are not in order")
