"""Generators of the virtual GPU: host generators that say they are on it."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

_on_device: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the address of the generator itself: operators get it in another Python object."""


def is_on_device(generator: torch.Generator) -> bool:
    return generator._cdata in _on_device  # type: ignore[attr-defined]


def generator_type(
    native: type[torch.Generator], as_device: Callable[[Any], torch.device]
) -> type[torch.Generator]:
    """What stands for `torch.Generator`; `as_device` completes a device as its user wrote it."""

    class GeneratorType(type(native)):  # type: ignore[misc]
        """Generators made before the session are generators too."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, native)

    class Generator(native, metaclass=GeneratorType):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            made: Any = native.__new__(cls, device="cpu")  # type: ignore[call-arg]
            made._shown = as_device(device)
            if made._shown.type == "cuda":
                _on_device[made._cdata] = made
            return made

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            shown: torch.device = self._shown
            return shown

        def clone_state(self) -> "Generator":
            cloned = Generator(self.device)
            cloned.set_state(self.get_state())
            return cloned

    return Generator
