"""What the arguments of a call say of it, and how they are handed to the meta kernel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.invocation import Invocation, Settings


def float_bytes(call: Invocation) -> int:
    """Bytes of the floats that a factory of a shape makes; 0 for integers and other factories."""
    shape = call.args[0] if call.args else None
    dtype = call.kwargs.get("dtype") or torch.get_default_dtype()
    if not isinstance(shape, (list, tuple)) or not values.is_approximate(dtype):
        return 0
    return torch.Size(shape).numel() * dtype.itemsize


def allows_tf32(call: Invocation) -> bool:
    """PyTorch's current settings allow TF32 for the call."""
    product = call.operator.product
    return (
        product is not None
        and call.inputs[0].dtype is torch.float32
        and private.fp32_precision("cuda", product) == "tf32"
    )


TF32: Settings = (("allow_tf32", True),)
TRIED: Settings = (("benchmark", True),)


def settings_of(call: Invocation) -> Settings:
    """PyTorch's current settings that the call's library follows, as `Call.literals` has them."""
    is_tried = call.operator.product == "conv" and torch.backends.cudnn.benchmark
    return (*(TF32 if allows_tf32(call) else ()), *(TRIED if is_tried else ()))


DROPS: Settings = (("drops", True),)


def drops(call: Invocation) -> Settings:
    """Whether an attention drops some of its weights."""
    share = dict(call.named_arguments).get("dropout_p")
    return DROPS if isinstance(share, float) and share > 0 else ()


def is_all_on_host(args: Sequence[Any]) -> bool:
    """No argument is a virtual tensor, or one that the user put on "meta"."""
    for arg in args:
        if isinstance(arg, Tensor):
            if private.is_meta(arg):
                return False
        elif isinstance(arg, (list, tuple)) and not is_all_on_host(arg):
            return False
    return True


def in_order_of_allocation(
    outputs: Sequence[Tensor], order: tuple[int, ...] | None
) -> Sequence[Tensor]:
    if order is None or len(order) != len(outputs):
        return outputs
    return [outputs[place] for place in order]


def is_elementwise_on_lists(call: Invocation) -> bool:
    """A `_foreach_` operator on lists of equal shapes, which torch accepts tensor by tensor.

    Its meta kernel is a Python loop over hundreds of tensors: not worth running as a check.
    """
    if not call.operator.is_foreach:
        return False
    lists = [arg for arg in call.args if isinstance(arg, list) and arg]
    shapes = [[tensor.shape for tensor in arg] for arg in lists if isinstance(arg[0], Tensor)]
    return bool(shapes) and all(each == shapes[0] for each in shapes)


def is_from_options(call: Invocation) -> bool:
    """A factory called from C++ with another tensor's options.

    Python's bindings always pass `pin_memory` (tools/autograd/gen_python_functions.py);
    `Tensor::options()` leaves it unset.
    """
    return "pin_memory" not in call.kwargs


def without_device(kwargs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Keywords with the device replaced, without pinning and without a generator."""
    if not kwargs:
        return kwargs
    kept = {name: arg for name, arg in kwargs.items() if name != "pin_memory"}
    if "device" in kept:
        kept["device"] = device
    if "generator" in kept:
        kept["generator"] = None
    return kept
