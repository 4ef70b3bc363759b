"""transformer_engine.pytorch.fp8: what is asked of the recipe in force."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..common.recipe import Recipe
from .quantization import (
    Precision,
    fp8_autocast,
    get_default_fp8_recipe,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
)

__all__ = [
    "FP8GlobalStateManager",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_fp8_recipe",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
]


class FP8GlobalStateManager:
    @classmethod
    def is_fp8_enabled(cls) -> bool:
        return Precision.recipe is not None

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        return Precision.recipe or get_default_fp8_recipe()


@contextmanager
def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[Any]:
    if enabled:
        raise NotImplementedError(
            "tally does not know Transformer Engine's weights that are float8 from the start "
            "(fp8_model_init, Megatron's fp8_param)"
        )
    yield
