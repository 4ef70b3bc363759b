"""Generators of the virtual GPU: host generators whose `device` is the GPU."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchtally import torch_private as private

_on_device: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the address of the generator itself: operators get it in another Python object."""


def is_on_device(generator: torch.Generator) -> bool:
    return private.generator_identity(generator) in _on_device


def generator_type(
    native: type[torch.Generator], as_device: Callable[[Any], torch.device]
) -> type[torch.Generator]:
    """The replacement of `torch.Generator`; `as_device` completes a device as its user wrote it."""

    class GeneratorType(type(native)):  # type: ignore[misc]
        """Generators made before the session are generators too."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, native)

    class Generator(native, metaclass=GeneratorType):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            generator: Any = native.__new__(cls, device="cpu")  # type: ignore[call-arg]
            generator._shown = as_device(device)
            if generator._shown.type == "cuda":
                _on_device[private.generator_identity(generator)] = generator
            return generator

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            device: torch.device = self._shown
            return device

        def clone_state(self) -> "Generator":
            cloned = Generator(self.device)
            cloned.set_state(self.get_state())
            return cloned

    return Generator
