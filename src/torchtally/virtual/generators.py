"""Generators of the virtual GPU: host generators whose `device` is the GPU."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.values import OFFSET_STEP, packed_state, seed_at, unpacked_state

KEPT_STATES = 64
"""Of a generator that the script makes, of those it has been asked for."""

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
            generator._kept = {}
            if generator._shown.type == "cuda":
                _on_device[private.generator_identity(generator)] = generator
            return generator

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            device: torch.device = self._shown
            return device

        def get_state(self) -> Tensor:
            """State of a device's generator in 16 bytes: a seed, and an offset that grows."""
            if self._shown.type != "cuda":
                state: Tensor = super().get_state()
                return state
            host_state, kept = super().get_state(), self._kept
            last = max(kept, default=0)
            if last not in kept or not torch.equal(kept[last], host_state):
                last += OFFSET_STEP
                kept[last] = host_state
            if len(kept) > KEPT_STATES:
                del kept[min(kept)]
            return packed_state(self.initial_seed(), last)

        def set_state(self, new_state: Tensor) -> Any:
            if self._shown.type != "cuda":
                return super().set_state(new_state)
            seed, offset = unpacked_state(new_state)
            if seed == self.initial_seed() and offset in self._kept:
                super().set_state(self._kept[offset])
            else:
                self.manual_seed(seed_at(seed, offset))
            return self

        def clone_state(self) -> "Generator":
            cloned = Generator(self.device)
            cloned.set_state(self.get_state())
            return cloned

    return Generator
