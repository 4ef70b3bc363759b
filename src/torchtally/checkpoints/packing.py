"""State dicts as tensors by name and plain JSON data, and back: any nesting, no pickle.

    {"step": 3, "betas": (0.9, 0.95), 0: tensor}, packed as "adam":

    tensors   adam/0
    plain     {"dict": [["step", 3], ["betas", {"tuple": [0.9, 0.95]}], [0, {"tensor": "adam/0",
              "device": "cpu"}]]}

Every dict in the plain data is written by `pack` and has one key that says what it stands for.
"""

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtally.errors import UsageError

LARGEST_IN_JSON = 2**63 - 1


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as plain data; its tensors are added to `tensors` under names below `name`.

    Raises UsageError for a value of another type, naming where it is.
    """
    match value:
        case Tensor():
            if name in tensors:
                raise UsageError(f"{name}: two tensors have this name.")
            tensors[name] = value.detach()
            return {"tensor": name, "device": value.device.type}
        case None | bool() | str():
            return value
        case np.ndarray():
            return {"numpy": pack(torch.from_numpy(np.ascontiguousarray(value)), name, tensors)}
        case np.generic():
            return pack(value.item(), name, tensors)
        case int():
            return value if abs(value) <= LARGEST_IN_JSON else {"int": str(value)}
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case Mapping():
            items = [
                [pack(key, f"{name} (a key)", {}), pack(item, f"{name}/{key}", tensors)]
                for key, item in value.items()
            ]
            return {"dict": items}
        case list() | tuple():
            items = [pack(item, f"{name}/{at}", tensors) for at, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
    raise UsageError(
        f"{name}: a {type(value).__name__} cannot be saved. Checkpoints hold tensors, NumPy "
        "arrays, numbers, texts, and lists, tuples and dicts of them."
    )


def unpack(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The packed value; tensors on the kind of device that they were on.

    Raises LookupError, TypeError or ValueError for data that `pack` did not write.
    """
    if isinstance(plain, list):
        return [unpack(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        return tensors[plain["tensor"]].to(plain["device"])
    ((kind, content),) = plain.items()
    return _UNPACKED[kind](content, tensors)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype


_UNPACKED: Mapping[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "dict": lambda items, tensors: {
        unpack(key, tensors): unpack(item, tensors) for key, item in items
    },
    "tuple": lambda items, tensors: tuple(unpack(item, tensors) for item in items),
    "numpy": lambda content, tensors: unpack(content, tensors).numpy(),
    "int": lambda digits, tensors: int(digits),
    "float": lambda text, tensors: float(text),
    "bytes": lambda text, tensors: base64.b64decode(text, validate=True),
    "dtype": lambda name, tensors: _dtype(name),
}
