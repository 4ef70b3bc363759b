"""transformer_engine.common.recipe: into which numbers a tensor is quantised, and what is scaled
together.
"""

from enum import Enum
from typing import Any


class Format(Enum):
    E2M1 = "e2m1"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    HYBRID = "hybrid"
    """E4M3 forward, E5M2 for gradients."""


class Recipe:
    """What else may be given (margins, lengths of histories) changes no count."""

    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __init__(self, *args: Any, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)
        assert self.fp8_format != Format.E5M2, "Pure E5M2 training is not supported."

    def delayed(self) -> bool:
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        return isinstance(self, Float8CurrentScaling)

    def float8_per_tensor_scaling(self) -> bool:
        return self.delayed() or self.float8_current_scaling()

    def float8_block_scaling(self) -> bool:
        return isinstance(self, Float8BlockScaling)

    def mxfp8(self) -> bool:
        return isinstance(self, MXFP8BlockScaling)

    def nvfp4(self) -> bool:
        return isinstance(self, NVFP4BlockScaling)


class DelayedScaling(Recipe):
    """Scaling by the largest values of steps before."""

    fp8_format = Format.HYBRID


class Float8CurrentScaling(Recipe):
    """Scaling by the tensor's largest value, which is looked for first."""

    fp8_format = Format.HYBRID


class Float8BlockScaling(Recipe):
    """1 x 128 numbers share a scale, of a weight 128 x 128."""


class MXFP8BlockScaling(Recipe):
    """32 numbers share a scale."""


class NVFP4BlockScaling(Recipe):
    """16 numbers of 4 bits share a scale, of a weight 16 x 16."""
