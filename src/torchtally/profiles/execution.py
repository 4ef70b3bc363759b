"""PyTorch's execution traces (`torch.profiler.ExecutionTraceObserver`): arguments of operators.

The file, also known as a Chakra execution trace, has what Kineto lacks: dtypes of a list's tensors,
lists of optional tensors, and shapes of a run without `record_shapes`. It has no times. Both number
the calls of a run alike: `rf_id` here, "Record function id" there ("External id" before PyTorch
2.3). Schemas 1.0.1 to 1.1.1 are read; strides are in the last one alone.
"""

import gzip
import io
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from torchtally.errors import TraceFileError
from torchtally.files.reading import open_at_once, read_bytes

MOST_BYTES = 2 << 30
HEAD_BYTES = 4096
TENSOR, LIST = "Tensor(", "GenericList["
NUMBERS = frozenset(("Bool", "Double", "Int", "SymBool", "SymFloat", "SymInt"))
NONE = "<None>"

ArgumentsKey = tuple[bytes, bytes, bytes, bytes]
"""Shapes, strides, types and values as Kineto writes them."""


class RecordedCall(NamedTuple):
    name: str
    arguments: ArgumentsKey


class CallInputs(msgspec.Struct):
    """Inputs of a call in schemas since 1.0.2."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] | None = None


class Attribute(msgspec.Struct, gc=False):
    name: str = ""
    value: Any = None


class CallNode(msgspec.Struct):
    """A call. Of the fields of other schemas nothing is there."""

    name: str = ""
    record_function: int | None = msgspec.field(default=None, name="rf_id")
    attributes: list[Attribute] = msgspec.field(default_factory=list, name="attrs")
    inputs: CallInputs | list[Any] = msgspec.field(default_factory=list)
    shapes: list[Any] = msgspec.field(default_factory=list, name="input_shapes")
    types: list[str] = msgspec.field(default_factory=list, name="input_types")

    @property
    def number(self) -> int | None:
        if self.record_function is not None:
            return self.record_function
        values = (each.value for each in self.attributes if each.name == "rf_id")
        return next((value for value in values if isinstance(value, int)), None)

    @property
    def arguments(self) -> CallInputs:
        if isinstance(self.inputs, CallInputs):
            return self.inputs
        return CallInputs(self.inputs, self.shapes, self.types)


class ExecutionFile(msgspec.Struct):
    """What is read of the file; other metadata is skipped."""

    nodes: list[CallNode]
    schema: str = ""


class ExecutionTrace:
    """Calls by the number of their record function."""

    def __init__(self, path: str, calls: dict[int, RecordedCall]) -> None:
        self.path = path
        self.calls = calls
        self.joined = 0
        """Calls that were asked for, and are here."""

    def arguments(self, number: int | None, name: str) -> ArgumentsKey | None:
        """Arguments of the operator of this name and number; None where it is not here."""
        call = None if number is None else self.calls.get(number)
        if call is None or call.name != name:
            return None
        self.joined += 1
        return call.arguments


def read_execution_trace(path: str) -> ExecutionTrace:
    """Raises TraceFileError for a file that cannot be read or is no execution trace."""
    try:
        content = decompress(read_bytes(path, MOST_BYTES))
        document = msgspec.json.decode(content, type=ExecutionFile)
    except FileNotFoundError:
        raise TraceFileError(f"{path}: no such file.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceFileError(f"{path}: cannot be decompressed ({error}).") from None
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceFileError(
            f"{path}: not an execution trace, or cut short ({str(error)[:200]}).\n"
            "One is what torch.profiler.ExecutionTraceObserver writes, once it is unregistered."
        ) from None
    calls = {
        number: RecordedCall(node.name, key_of(node.arguments))
        for node in document.nodes
        if (number := node.number) is not None and node.arguments.types
    }
    return ExecutionTrace(path, calls)


def decompress(content: bytes) -> bytes:
    """Decompressed, where it is compressed. Raises OSError beyond the bound."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    with gzip.open(io.BytesIO(content)) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise OSError(f"it holds more than {MOST_BYTES} bytes")
    return text


def is_execution_trace(path: str) -> bool:
    """Whether it is an execution trace, by its first bytes. False for what cannot be read: the
    reader says why.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            head = file.read(HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except (OSError, zlib.error):
        return False
    return head.lstrip().startswith(b"{") and b'"schema"' in head and b'"nodes"' in head


def key_of(inputs: CallInputs) -> ArgumentsKey:
    """Arguments in Kineto's words."""
    strides = inputs.strides
    count = len(inputs.types)
    if len(inputs.shapes) != count or len(inputs.values) != count:
        return b"", b"", b"", b""
    types = [kineto_type(kind) for kind in inputs.types]
    has_dims = [TENSOR in kind for kind in inputs.types]
    shapes = [part if kept else [] for part, kept in zip(inputs.shapes, has_dims, strict=True)]
    steps: Sequence[Any] = ()
    if strides is not None and len(strides) == count:
        steps = [part if kept else [] for part, kept in zip(strides, has_dims, strict=True)]
    values = [
        "" if kept else text_of(value) for value, kept in zip(inputs.values, has_dims, strict=True)
    ]
    encode = msgspec.json.encode
    return encode(shapes), encode(steps) if steps else b"", encode(types), encode(values)


def kineto_type(kind: str) -> str:
    """Type as Kineto spells it: Tensor(float) is "float", a list of two such
    "TensorList[float,float]", in which a tensor that is not given is "".
    """
    if kind.startswith(TENSOR):
        inner = kind[len(TENSOR) : -1]
        return "" if inner.startswith("nullptr") else inner
    if kind.startswith(LIST):
        parts = [part for part in kind[len(LIST) : -1].split(",") if part]
        if parts and all(part in NUMBERS for part in parts):
            return "ScalarList"
        if all(part.startswith(TENSOR) or part == "None" for part in parts):
            return f"TensorList[{','.join(map(kineto_type, parts))}]"
    return "Scalar" if kind in NUMBERS else ""


def text_of(value: object) -> str:
    return "" if value is None or value == NONE or isinstance(value, dict) else str(value)
