"""transformer_engine.common.recipe: how scales are found, which changes no count here."""

from enum import Enum
from typing import Any


class Format(Enum):
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    HYBRID = "hybrid"


class Recipe:
    def __init__(self, *args: Any, **options: Any) -> None:
        self.fp8_format = options.get("fp8_format", Format.HYBRID)

    def delayed(self) -> bool:
        return isinstance(self, DelayedScaling)


class DelayedScaling(Recipe):
    """By the largest values of steps before."""


class Float8CurrentScaling(Recipe):
    """By the tensor's largest value, which is looked for first."""
