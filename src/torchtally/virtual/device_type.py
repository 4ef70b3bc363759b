"""`torch.device` of a number: a CUDA device, which a build without CUDA refuses to make."""

from typing import Any

import torch

NATIVE = torch.device


class DeviceType(type):
    """Type of the replacement below: it makes native devices, and all of them are its instances.

    Equal to the native type and hashed like it, because tables of torch's have that as a key
    (`SUPPORTED_PARAM_TYPES`, torch/_library/infer_schema.py).
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if is_number(args[0] if args else kwargs.get("device")):
            return NATIVE("cuda", *args, *kwargs.values())
        return NATIVE(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, NATIVE)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, NATIVE)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is NATIVE

    def __hash__(cls) -> int:
        return hash(NATIVE)

    def __repr__(cls) -> str:
        return repr(NATIVE)


Device = DeviceType("device", (), {"__module__": "torch", "__doc__": NATIVE.__doc__})


def is_number(place: Any) -> bool:
    return isinstance(place, int) and not isinstance(place, bool)
