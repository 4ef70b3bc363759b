"""Operators by the names and argument types that a profiler records.

A profiler records nested operators: `aten::linear` with `aten::addmm` within it. A trace has those
that a dispatch mode sees: the outermost one that is not merely a composition of others
(CompositeImplicitAutograd), in the overload that was called.
"""

from functools import cache

import torch

from torchtally import torch_private as private
from torchtally.profiles import Arguments

Overload = private.OpOverload

DTYPES = {
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "c10::Float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "c10::Float8_e5m2fnuz": torch.float8_e5m2fnuz,
}
"""By the spelling of `caffe2::TypeMeta`, which the profiler records (torch/csrc/profiler/util.cpp,
inputTypes)."""

TENSOR_LISTS = ("TensorList", "GenericList[TensorList]")
TYPED_LIST = "TensorList["
EMPTY_LIST = "TensorList[]"


@cache
def packet(name: str) -> tuple[Overload, ...]:
    """The overloads of "aten::mm"; none of an operator that this PyTorch does not have."""
    namespace, colons, operator = name.partition("::")
    if not colons or not namespace.isidentifier() or not operator.isidentifier():
        return ()
    try:
        overload_packet = getattr(getattr(torch.ops, namespace), operator)
        overloads = [getattr(overload_packet, each) for each in overload_packet.overloads()]
    except (AttributeError, RuntimeError):
        return ()
    return tuple(filter(is_dispatched, overloads))


def is_dispatched(overload: Overload) -> bool:
    """Not one of TorchScript alone, as "aten::mul_.t" for lists."""
    try:
        private.has_composite_kernel(overload)
    except RuntimeError:
        return False
    return True


def overload_of(name: str, arguments: Arguments) -> Overload | None:
    """The overload that these arguments fit; None where none does."""
    if arguments.shapes is None:
        return None
    overloads = [each for each in packet(name) if fits(each, arguments)]
    plain = [
        each
        for each in overloads
        if not any(part.is_out for part in private.schema(each).arguments)
    ]
    return next(iter(plain or overloads), None)


def fits(overload: Overload, arguments: Arguments) -> bool:
    """Whether an overload takes arguments of these types. A profiler leaves none out."""
    expected = private.schema(overload).arguments
    if len(expected) != len(arguments.types):
        return False
    return all(
        takes(str(argument.type), recorded)
        for argument, recorded in zip(expected, arguments.types, strict=True)
    )


def takes(expected: str, recorded: str) -> bool:
    """Whether an argument of this schema's type may be recorded so."""
    is_tensor, is_list = "Tensor" in expected, "List[" in expected
    if "Dimname" in expected:
        return False
    if recorded in DTYPES:
        return is_tensor and not is_list
    if recorded == EMPTY_LIST:
        return is_list
    if is_tensor_list(recorded):
        return is_tensor and is_list
    if recorded == "Scalar":
        return not is_tensor and not is_list and "str" not in expected
    if recorded == "ScalarList":
        return not is_tensor and is_list
    return not (recorded == "" and expected == "Tensor")


def is_tensor_list(recorded: str) -> bool:
    return recorded in TENSOR_LISTS or recorded.startswith(TYPED_LIST)


def types_in_list(recorded: str) -> list[str]:
    """Types of the tensors of "TensorList[float,]", "" for one that is not given; [] where they
    were not recorded.
    """
    return recorded[len(TYPED_LIST) : -1].split(",") if recorded.startswith(TYPED_LIST) else []


@cache
def is_composition(name: str) -> bool:
    """Whether it is a composition in every overload, so that the dispatcher shows its parts
    alone.
    """
    overloads = [each for each in packet(name) if not private.overload_name(each).endswith("out")]
    return bool(overloads) and all(map(private.has_composite_kernel, overloads))


def is_shown(name: str, arguments: Arguments) -> bool | None:
    """Whether a dispatch mode sees the operator. None for what is no operator of this PyTorch."""
    overload = overload_of(name, arguments)
    if overload is not None:
        return not private.has_composite_kernel(overload)
    return (not is_composition(name)) if packet(name) else None
