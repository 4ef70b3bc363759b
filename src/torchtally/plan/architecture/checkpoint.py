"""What a .safetensors file holds, from its header alone: names, dtypes and shapes of its tensors.

The format is that of safetensors 0.8 (https://github.com/huggingface/safetensors, "Format"): eight
bytes with the header's length, little end first; the header, a JSON object; then every tensor's
bytes, one after the other without a gap to the end of the file. Weights are never read. A header is
untrusted input: everything in it is checked before use.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.architecture.config_keys import excerpt

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MOST_ELEMENTS = 2**64 - 1
"""The limit of readers in C and Rust."""
METADATA = "__metadata__"
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"

DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "C64": ("complex64", 64),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
}
"""The format's name: torch's, where torch has one, and the bits of an element."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    """By torch's name, where torch has one."""
    shape: tuple[int, ...]
    data_bytes: int
    file: str
    """Where its bytes are."""
    begins_at: int = field(default=0, compare=False)
    """The first of them, from the beginning of the file."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's tensors: of one file, or of all that an index names."""

    place: str
    tensors: tuple[Tensor, ...]

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors, headers left out."""
        return sum(tensor.data_bytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Elements that are floating-point numbers. Integers are tables, masks, or weights packed
        by a quantiser, whose number only the quantiser knows.
        """
        return sum(n for dtype, n in self.elements_by_dtype if "float" in dtype)

    @property
    def elements_by_dtype(self) -> tuple[tuple[str, int], ...]:
        """Elements of every dtype that is there, the most first."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors:
            counts[tensor.dtype] += tensor.elements
        return tuple(counts.most_common())


def read_checkpoint(path: Path | str) -> Checkpoint:
    """A .safetensors file, the index of several, or the folder that either lies in.

    Raises UsageError naming the file, and the offset or key that is wrong.
    """
    path = Path(path)
    if path.is_dir():
        path = _within(path)
    if path.suffix == ".json":
        return _read_index(path)
    return Checkpoint(str(path), _read_header(path))


def holds_checkpoint(folder: Path) -> bool:
    """A folder has weights that `read_checkpoint` can read."""
    return (folder / INDEX).is_file() or len(list(folder.glob("*.safetensors"))) == 1


def _within(folder: Path) -> Path:
    """The index of a folder, or else its only .safetensors."""
    for name in (INDEX, WHOLE):
        if (folder / name).is_file():
            return folder / name
    paths = sorted(folder.glob("*.safetensors"))
    if len(paths) == 1:
        return paths[0]
    number = "no" if not paths else f"{len(paths)}"
    raise UsageError(
        f"{folder}: holds {number} .safetensors files and no {INDEX}: name one file instead."
    )


def _read_index(path: Path) -> Checkpoint:
    """All shards of an index, each of whose tensors it names, and no other."""
    text = _first_bytes(path, MOST_HEADER_BYTES + 1)
    if len(text) > MOST_HEADER_BYTES:
        raise UsageError(f"{path}: too large for an index: over {MOST_HEADER_BYTES} bytes.")
    shard_of = _object(path, text, "the index").get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise UsageError(
            f"{path}: weight_map: expected tensors and files, found {excerpt(shard_of)}."
        )
    tensors: list[Tensor] = []
    for shard in dict.fromkeys(_shard_name(path, key, shard) for key, shard in shard_of.items()):
        shard_tensors = _read_header(path.with_name(shard))
        named = {key for key, value in shard_of.items() if value == shard}
        if odd := named.symmetric_difference(tensor.name for tensor in shard_tensors):
            raise UsageError(
                f"{path}: {excerpt(min(odd))}: is in only one of the index and {shard}. One of "
                "them belongs to another checkpoint or is incomplete."
            )
        tensors += shard_tensors
    return Checkpoint(str(path), tuple(tensors))


def _shard_name(path: Path, key: str, shard: Any) -> str:
    """A file beside the index, and nowhere else."""
    is_name = isinstance(shard, str) and Path(shard).name == shard and "\\" not in shard
    if not is_name or not shard.endswith(".safetensors"):
        raise UsageError(
            f"{path}: weight_map: {excerpt(key)}: expected the name of a .safetensors file beside "
            f"the index, found {excerpt(shard)}."
        )
    return str(shard)


def _read_header(path: Path) -> tuple[Tensor, ...]:
    """The tensors of one file, which together fill it to its end."""
    start = _first_bytes(path, LENGTH_BYTES)
    if len(start) < LENGTH_BYTES:
        raise UsageError(f"{path}: truncated: {len(start)} bytes are not a .safetensors file.")
    length = int.from_bytes(start, "little")
    if length > MOST_HEADER_BYTES:
        raise UsageError(
            f"{path}: offset 0: a header of {length} bytes is over the format's limit of "
            f"{MOST_HEADER_BYTES}: this is not a .safetensors file."
        )
    header = _first_bytes(path, LENGTH_BYTES + length)[LENGTH_BYTES:]
    if len(header) < length:
        raise UsageError(
            f"{path}: offset {LENGTH_BYTES + len(header)}: truncated within the header of {length} "
            "bytes."
        )
    if not header.startswith(b"{"):
        raise UsageError(f"{path}: offset {LENGTH_BYTES}: the header does not begin with '{{'.")
    entries = _object(path, header, "the header")
    _check_metadata(path, entries.pop(METADATA, None))
    spans = sorted(_span(path, name, entry) for name, entry in entries.items())
    _check_filled(path, spans, path.stat().st_size - LENGTH_BYTES - length)
    first = LENGTH_BYTES + length
    return tuple(replace(tensor, begins_at=first + begin) for begin, _, _, tensor in spans)


def _first_bytes(path: Path, number: int) -> bytes:
    """So many of a plain file's first bytes, or as many as there are."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file.")
        with path.open("rb") as file:
            return file.read(number)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _object(path: Path, text: bytes, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys."""
    try:
        values = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {what} is not JSON: {str(error)[:200]}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: {what} is not a JSON object: {excerpt(values)}")
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise ValueError(f"duplicate key {excerpt(twice)}")
    return values


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise UsageError(
            f"{path}: {METADATA}: expected strings by name, found {excerpt(metadata)}."
        )


Span = tuple[int, int, str, Tensor]
"""First byte, the byte after the last, and the name, which orders those without any bytes."""


def _span(path: Path, name: str, entry: Any) -> Span:
    """One tensor, and where its bytes are; they must be as many as dtype and shape make."""
    wrong = partial(_wrong, path, name)
    if not isinstance(entry, dict):
        raise wrong("entry", f"expected dtype, shape and data_offsets, found {excerpt(entry)}")
    dtype, bits = _dtype(wrong, entry.get("dtype"))
    shape, elements = _shape(wrong, entry.get("shape"))
    begin, end = _offsets(wrong, entry.get("data_offsets"))
    if elements * bits != 8 * (end - begin):
        what = f"{end - begin} bytes cannot be {elements} elements of {bits} bits"
        raise wrong("data_offsets", what)
    return begin, end, name, Tensor(name, dtype, shape, end - begin, str(path))


Wrong = Callable[[str, str], UsageError]
"""The error of one tensor, from the key and what is wrong with it."""


def _wrong(path: Path, name: str, key: str, complaint: str) -> UsageError:
    return UsageError(f"{path}: tensor {excerpt(name)}: {key}: {complaint}.")


def _dtype(wrong: Wrong, value: Any) -> tuple[str, int]:
    """Its name and bits."""
    if not isinstance(value, str) or value not in DTYPES:
        raise wrong("dtype", f"expected one of {', '.join(DTYPES)}, found {excerpt(value)}")
    return DTYPES[value]


def _shape(wrong: Wrong, value: Any) -> tuple[tuple[int, ...], int]:
    """The shape, and its elements."""
    shape = _counts(value)
    if shape is None:
        raise wrong("shape", f"expected a list of whole numbers, found {excerpt(value)}")
    elements = _elements(shape)
    if elements is None:
        raise wrong("shape", f"{excerpt(value)} has too many elements")
    return shape, elements


def _offsets(wrong: Wrong, value: Any) -> tuple[int, int]:
    offsets = _counts(value)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        what = f"expected first and last of its bytes, found {excerpt(value)}"
        raise wrong("data_offsets", what)
    return offsets[0], offsets[1]


def _counts(values: Any) -> tuple[int, ...] | None:
    """Whole numbers that can be counted to; None for anything else."""
    if not isinstance(values, list) or not all(_is_count(value) for value in values):
        return None
    return tuple(values)


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 <= value <= MOST_ELEMENTS


def _elements(shape: Iterable[int]) -> int | None:
    """The product; None beyond what can be counted, before it grows any further."""
    elements = 1
    for side in shape:
        elements *= side
        if elements > MOST_ELEMENTS:
            return None
    return elements


def _check_filled(path: Path, spans: Iterable[Span], data_bytes: int) -> None:
    """Tensors lie one after the other, without gaps or overlaps."""
    at = 0
    for begin, end, name, _ in spans:
        if begin != at:
            fault = "overlaps the one before it" if begin < at else "leaves a gap before it"
            raise UsageError(
                f"{path}: tensor {excerpt(name)}: data_offsets: begins at {begin}, expected "
                f"{at}: it {fault}."
            )
        at = end
    if at != data_bytes:
        raise UsageError(
            f"{path}: the header describes {at} bytes of weights, the file has {data_bytes}: it is "
            "truncated, or has trailing data."
        )
