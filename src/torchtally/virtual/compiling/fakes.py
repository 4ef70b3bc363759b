"""Fake tensors of the compiler that are on a GPU, in a build of torch that has none.

C++ sees tensors of the device "meta", as of every virtual tensor; Python is told "cuda", and so are
the dispatcher's keys. Much of what goes wrong here is silent: the graph compiles, and is another.
"""

import warnings
from typing import Any

import torch
from torch.library import Library

from torchtally.virtual import autocast, kernels
from torchtally.virtual.shapes import CHANNELS_LAST, computes_channels_last
from torchtally.virtual.stand_ins import StandIn, instead_of
from torchtally.virtual.tensors import NUMBERS

GPU = torch.device("cuda", 0)


def stand_ins(compiler: Any) -> list[StandIn]:
    return [
        *devices(compiler),
        instead_of(compiler.MAKE_SUBCLASS, staticmethod(make_subclass(compiler))),
        instead_of(compiler.INIT_CONTEXT, lambda device: None),
        instead_of(compiler.AVOID_DEVICE_INIT, property(lambda mode: True)),
        instead_of(compiler.CONV_MEMORY_FORMAT, convolution_format),
        *(
            instead_of(name, decomposes(compiler, getattr(*name)))
            for name in compiler.DECOMPOSITIONS
        ),
        StandIn(kernels, "is_on_gpu", or_fake(compiler, kernels.is_on_gpu)),
        StandIn(autocast, "is_eligible", or_fake_float(compiler, autocast.is_eligible)),
    ]


def make_subclass(compiler: Any) -> Any:
    """Fake tensors get the keys of the device they are told, but C++ is not told that device.

    Autograd would look for the queue of a device that is not there (`Engine::ready_queue`).
    """
    name = compiler.MAKE_SUBCLASS
    native = getattr(*name)

    def make(kind: type, data: Any, require_grad: bool = False, **options: Any) -> Any:
        device = options.get("device_for_backend_keys")
        is_fake = issubclass(kind, compiler.FakeTensor)
        if is_fake and device is not None and torch.device(device).type == "cuda":
            options["dispatch_device"] = False
        return native(kind, data, require_grad, **options)

    return make


def devices(compiler: Any) -> list[StandIn]:
    """`device`, and what Python asks of it: where `is_meta` is true all operators are fallbacks."""

    def asks(kind: str) -> property:
        return property(lambda tensor: tensor.device.type == kind)

    answers = [
        StandIn(each, f"is_{kind}", asks(kind))
        for each in compiler.TRACED
        for kind in ("meta", "cuda", "cpu")
    ]
    told = [instead_of(name, value, is_new=True) for name, value in compiler.device_of_fakes(GPU)]
    device = StandIn(compiler.FunctionalTensor, "device", property(compiler.functional_device))
    moves = [
        StandIn(each, name, moving(getattr(each, name)), is_new=True)
        for each in compiler.TRACED
        for name in ("to", "cuda")
    ]
    fills = [
        StandIn(each, "__setitem__", filling(each.__setitem__), is_new=True)
        for each in compiler.TRACED
    ]
    return [*answers, *told, device, *moves, *fills]


def with_number(device: Any) -> Any:
    """A device as C++ takes it here, which would ask a GPU for the number of the current one."""
    if device == "cuda" or (isinstance(device, torch.device) and str(device) == "cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    return device


def filling(native: Any) -> Any:
    """`tensor[index] = number`, as of a virtual tensor (virtual/tensors.py)."""

    def setitem(tensor: Any, index: Any, value: Any) -> None:
        if isinstance(value, NUMBERS) and tensor.device.type == "cuda":
            value = torch.tensor(value, dtype=tensor.dtype)
        native(tensor, index, value)

    return setitem


def moving(native: Any) -> Any:
    """`tensor.to("cuda")` and `tensor.cuda()`."""
    is_cuda = native.__name__ == "cuda"

    def move(tensor: Any, *args: Any, **options: Any) -> Any:
        if is_cuda and not args and options.get("device") is None:
            options["device"] = torch.device("cuda")
        options = {name: with_number(value) for name, value in options.items()}
        return native(tensor, *map(with_number, args), **options)

    return move


def is_fake_on_gpu(compiler: Any, tensor: Any) -> bool:
    return isinstance(tensor, compiler.TRACED) and tensor.device.type == "cuda"


def or_fake(compiler: Any, native: Any) -> Any:
    def is_on_gpu(tensor: torch.Tensor) -> bool:
        return is_fake_on_gpu(compiler, tensor) or native(tensor)

    compiler.skip_function(is_on_gpu)
    return is_on_gpu


def or_fake_float(compiler: Any, native: Any) -> Any:
    def is_eligible(leaf: Any) -> bool:
        if not is_fake_on_gpu(compiler, leaf):
            return bool(native(leaf))
        return bool(leaf.dtype.is_floating_point and leaf.dtype is not torch.float64)

    compiler.skip_function(is_eligible)
    return is_eligible


def decomposes(compiler: Any, native: Any) -> Any:
    """Whether a GPU has no kernel for the operator. A build without CUDA has none for any."""

    def would_have_decomposed(operator: Any, arguments: Any) -> bool:
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        if any(tensor.device.type == "cuda" for tensor in tensors):
            return not compiler.has_host_kernel(operator)
        return bool(native(operator, arguments))

    return would_have_decomposed


def convolution_format(x: Any, weight: Any, backend: Any) -> torch.memory_format:
    """cuDNN's rule. C++ would choose by the device, which it takes for meta."""
    return CHANNELS_LAST[x.dim()] if computes_channels_last(x, weight) else torch.contiguous_format


def register() -> list[Library]:
    """Kernels that the compiler's tensors need, for as long as the libraries live."""
    library = Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # a build for CUDA has kernels of its own
        # Constants are folded by running their factories.
        library.impl("empty.memory_format", empty_on_host, "CUDA")
        library.impl("empty_strided", empty_strided_on_host, "CUDA")
    return [library]


def empty_on_host(size: Any, **options: Any) -> torch.Tensor:
    return torch.empty(size, dtype=options.get("dtype"), device="cpu")


def empty_strided_on_host(size: Any, stride: Any, **options: Any) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=options.get("dtype"), device="cpu")
