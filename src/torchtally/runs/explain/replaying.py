"""A recorded call made once more, on the simulated GPU: what it computes, as the tracer writes it.

A profiler records shapes, strides and types of arguments, not results, schemas or what a composite
operator calls. Tensors of these shapes and the call itself tell all of that, and take no memory.

Known limits. The dtypes of a list's tensors are not recorded: they are read from the kernel's name,
else taken to be the commonest of the file. Lists of optional tensors (`index`) are not recorded at
all: such calls stay uncounted. An execution trace of the same run has both. Strides before PyTorch
2.1 are assumed to be contiguous, and values that are not tensors to be the defaults.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.chips import chip as chip_of
from torchtally.profiles import Arguments
from torchtally.runs.explain.schemas import (
    DTYPES,
    EMPTY_LIST,
    Overload,
    is_tensor_list,
    overload_of,
    types_in_list,
)
from torchtally.trace import Call
from torchtally.tracer.calls import Calls
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.observer import NullObserver
from torchtally.virtual.session import virtual_gpu
from torchtally.virtual.storage import VirtualStorage

MOST_ELEMENTS = 1 << 50
"""Of a tensor in a profiler's file: more is none that ran."""

SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}
"""By their numbers in c10/core/ScalarType.h, as which the profiler records a dtype."""
MEMORY_FORMATS = {
    0: torch.contiguous_format,
    1: torch.preserve_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
}
OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
DTYPE_OF_BYTES = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.int64}
NAMED_TYPES = re.compile(r"c10::BFloat16|c10::Half|\bfloat\b|\bdouble\b")
TF32_KERNEL = re.compile(r"tf32|s1688gemm|s1688_|tensorop_s")
"""Kernels of cuBLAS and cuDNN that compute float32 in TF32 say so in their names."""
STAND_IN = "H100-SXM"
TO_DEVICE, TO_HOST = "HtoD", "DtoH"


class NotReplayedError(Exception):
    """Why a recorded call cannot be repeated: the operator stays uncounted."""


class Collected(NullObserver):
    """Collects the calls of what runs on the simulated GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()
        self._storages = count()
        self.ran: list[int] = []
        """Places of calls, in order."""

    def storage_born(self, storage: VirtualStorage) -> None:
        storage.number = next(self._storages)  # without one, a tensor counts as the host's

    def operator_ran(self, invocation: Invocation, outputs: Any) -> None:
        self.clock += 1
        self.ran.append(self.calls.of(invocation, outputs)[0])


class Replayer:
    """Makes recorded calls again. Use within `replayer()`."""

    def __init__(self, observer: Collected, float_dtype: torch.dtype) -> None:
        self._observer = observer
        self._float_dtype = float_dtype
        """Of lists of tensors, where nothing tells their dtype."""

    def calls(self, name: str, arguments: Arguments, kernels: Iterable[str]) -> tuple[Call, ...]:
        """What a dispatch mode sees of the call: one operator, or those that it is composed of.

        `kernels` are the names of those that it launched. Raises NotReplayedError.
        """
        names = " ".join(kernels)
        overload = overload_of(name, arguments)
        if overload is None:
            raise NotReplayedError(why_unknown(name, arguments))
        is_float32 = "float" in arguments.types
        is_tf32 = is_float32 and TF32_KERNEL.search(names) is not None
        with tf32_allowed(is_tf32):
            try:
                given, named = self._arguments(overload, arguments, names)
                first = len(self._observer.ran)  # what made the arguments is no part of the call
                overload(*given, **named)
            except NotReplayedError:
                raise
            except Exception as error:  # whatever a file from elsewhere makes torch raise
                raise NotReplayedError(f"{type(error).__name__}: {first_line(error)}") from None
            finally:
                given, named = [], {}
        table = self._observer.calls.calls
        return tuple(table[place] for place in self._observer.ran[first:])

    def _arguments(
        self, overload: Overload, arguments: Arguments, kernels: str
    ) -> tuple[list[Any], dict[str, Any]]:
        given: list[Any] = []
        named: dict[str, Any] = {}
        for place, argument in enumerate(private.schema(overload).arguments):
            value = self._value(overload, arguments, place, kernels)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                given.append(value)
        return given, named

    def _value(self, overload: Overload, arguments: Arguments, place: int, kernels: str) -> Any:
        assert arguments.shapes is not None, "an overload was found by them"
        argument = private.schema(overload).arguments[place]
        expected, recorded = str(argument.type), arguments.types[place]
        shape = arguments.shapes[place]
        strides = None if arguments.strides is None else arguments.strides[place]
        if recorded in DTYPES:
            device = device_of(overload, arguments, place, kernels)
            return tensor(shape, strides, DTYPES[recorded], device)
        if recorded == EMPTY_LIST:
            return []
        if is_tensor_list(recorded):
            return self._tensors(shape, strides, types_in_list(recorded), kernels)
        text = "" if arguments.values is None else arguments.values[place]
        if "Tensor" in expected:
            if "List[" in expected:
                raise NotReplayedError("a list of optional tensors is not recorded")
            return None
        if argument.name == "device":
            return torch.device("cpu" if TO_HOST in kernels else "cuda")
        if text:
            return value_of(argument.name, text)
        if argument.has_default_value():
            return argument.default_value
        return assume(overload, argument.name, expected, arguments)

    def _tensors(
        self, shapes: object, strides: object, types: Sequence[str], kernels: str
    ) -> list[torch.Tensor | None]:
        if not isinstance(shapes, tuple) or any(not isinstance(each, tuple) for each in shapes):
            raise NotReplayedError("the shapes of a list of tensors are not recorded")
        usual = dtype_of_kernels(kernels) or self._float_dtype
        dtypes: Sequence[torch.dtype | None] = [usual] * len(shapes)
        if len(types) == len(shapes):
            dtypes = [DTYPES.get(each) for each in types]  # none for one that is not given
        rows: Sequence[object] = strides if isinstance(strides, tuple) else [None] * len(shapes)
        if len(rows) != len(shapes):
            rows = [None] * len(shapes)
        return [
            None if dtype is None else tensor(shape, stride, dtype, "cuda")
            for shape, stride, dtype in zip(shapes, rows, dtypes, strict=True)
        ]


@contextmanager
def replayer(chip: Chip, float_dtype: torch.dtype, *, is_host: bool) -> Iterator[Replayer]:
    """A simulated GPU of unlimited memory to make calls on."""
    observer = Collected()
    if chip.vendor not in ("NVIDIA", "CPU"):
        # Only a device of CUDA's is simulated. What a call is does not depend on the chip: a choice
        # that does (which attention kernel) was made, and is the operator that was recorded.
        chip = chip_of(STAND_IN)
    with (
        virtual_gpu(
            chip, observer=observer, memory_is_limited=False, dispatch="cpu" if is_host else "cuda"
        ),
        torch.no_grad(),
    ):
        yield Replayer(observer, float_dtype)


@contextmanager
def tf32_allowed(is_allowed: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def tensor(shape: object, strides: object, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor without values. A stride of 0 in a dimension of more than one is broadcast."""
    sizes = ints(shape)
    steps = ints(strides) if strides is not None else ()
    count = 1
    for size in sizes:
        count *= max(size, 1)
    if count > MOST_ELEMENTS:
        raise NotReplayedError(f"a tensor of {count} elements")
    if len(steps) != len(sizes):
        steps = contiguous(sizes)
    kept = [1 if step == 0 else size for size, step in zip(sizes, steps, strict=True)]
    dense = torch.empty_strided(kept, steps, dtype=dtype, device=device)
    if not dtype.is_floating_point and not dtype.is_complex:
        dense.zero_()  # small ones have values, and an index of any other value may be out of range
    return dense.expand(sizes) if kept != list(sizes) else dense


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this shape."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def ints(value: object) -> tuple[int, ...]:
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value):
        return value
    raise NotReplayedError("the shape of a tensor is not recorded")


NUMBERS = ("double", "long int", "long", "bool")
"""Types that a Python number has as a tensor."""


def device_of(overload: Overload, arguments: Arguments, place: int, kernels: str) -> str:
    """Device of a tensor of a copy between host and device. Of others, a Python number that stands
    for a tensor is on the host: one without dimensions beside tensors that have some.
    """
    is_target = place == 0 and overload.name() == "aten::copy_"
    shapes = arguments.shapes or ()
    if place and not shapes[place] and arguments.types[place] in NUMBERS and any(shapes):
        return "cpu"
    if TO_DEVICE in kernels:
        return "cuda" if is_target else "cpu"
    if TO_HOST in kernels and is_target:
        return "cpu"
    return "cuda"


def dtype_of_kernels(kernels: str) -> torch.dtype | None:
    """The dtype that a kernel's template names."""
    if match := OPAQUE.search(kernels):
        return DTYPE_OF_BYTES.get(int(match[1]))
    match = NAMED_TYPES.search(kernels)
    return None if match is None else DTYPES[match[0]]


def value_of(name: str, text: str) -> Any:
    """An argument other than a tensor, from its text.

    Raises NotReplayedError where the text names nothing.
    """
    if text in ("inf", "-inf", "nan"):
        return float(text)
    try:
        value = ast.literal_eval(text) if len(text) < 100_000 else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text  # a string is recorded without quotes
    match name:
        case "dtype":
            return SCALAR_TYPES.get(value) if isinstance(value, int) else None
        case "memory_format":
            return MEMORY_FORMATS.get(value) if isinstance(value, int) else None
        case "layout" | "pin_memory":
            return None
    return value


def assume(overload: Overload, name: str, expected: str, arguments: Arguments) -> Any:
    """A value that was not recorded, where any will do for what a call costs."""
    if expected in ("number", "Scalar", "float"):
        return 1.0
    if expected.startswith("Optional"):
        return None
    if name == "output_mask":
        shapes = arguments.shapes or ()
        # The gradient of the first convolution's input is not asked for: it has at most 4 channels.
        weight = shapes[1] if len(shapes) > 1 else ()
        is_first = isinstance(weight, tuple) and len(weight) > 1 and weight[1] in (1, 2, 3, 4)
        return [
            not is_first if overload.name() == "aten::convolution_backward" else True,
            True,
            True,
        ]
    if expected == "bool":
        return False
    if expected == "int" and name == "dim":
        return -1
    raise NotReplayedError(f"the value of {name} is not recorded")


def why_unknown(name: str, arguments: Arguments) -> str:
    if not name.startswith("aten::"):
        return "an operator of another library"
    if arguments.shapes is None:
        return "its shapes were not recorded (record_shapes=True)"
    return "no overload of this PyTorch takes these arguments"


def first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:120] if lines else ""
