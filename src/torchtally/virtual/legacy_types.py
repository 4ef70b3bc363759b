"""`torch.cuda.FloatTensor` and its like: old names of a device and dtype, which also construct."""

from typing import Any

import torch
from torch import Tensor

from torchtally.virtual.stand_ins import StandIn

DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class LegacyType(type):
    """The class of these types. Calling one makes a tensor, not an instance of it."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.is_cuda and instance.dtype is cls.dtype

    def __call__(cls, *args: Any) -> Tensor:
        empty: Tensor = torch.empty(0, dtype=cls.dtype, device="cuda")
        tensor: Tensor = empty.new(*args)
        return tensor


def set_default_tensor_type(kind: Any) -> None:
    """The default dtype and device at once, as a legacy type or its name."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    torch.set_default_dtype(DTYPES[name.rpartition(".")[2]])
    torch.set_default_device("cuda" if ".cuda." in name else None)


def stand_ins() -> list[StandIn]:
    return [
        StandIn(torch, "set_default_tensor_type", set_default_tensor_type),
        *(
            StandIn(
                torch.cuda,
                name,
                LegacyType(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"}),
            )
            for name, dtype in DTYPES.items()
        ),
    ]
