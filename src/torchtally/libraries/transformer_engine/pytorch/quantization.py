"""transformer_engine.pytorch.quantization: which recipe is in force, and tensors by it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtally.libraries.operators import transformer_engine  # noqa: F401 (its operators)

from ..common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)

Support = tuple[bool, str]


class Precision:
    """Precision of the code that runs."""

    recipe: Recipe | None = None


def is_since(*capability: int) -> bool:
    return torch.cuda.get_device_capability() >= capability


def is_fp8_available(return_reason: bool = False) -> Any:
    reason = "Device compute capability 8.9 or higher required for FP8 execution."
    return answer(is_since(8, 9), reason, return_reason)


def is_mxfp8_available(return_reason: bool = False) -> Any:
    if is_since(12, 0):
        reason = "MXFP8 (for all gemm layouts) is not supported on 12.0+ architectures yet."
        return answer(False, reason, return_reason)
    reason = "Device compute capability 10.0 or higher required for MXFP8 execution."
    return answer(is_since(10, 0), reason, return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> Any:
    reason = "FP8 block scaled GEMM requires compute capability 9.0 or higher and CUDA >= 12.9."
    return answer(is_since(9, 0), reason, return_reason)


def is_nvfp4_available(return_reason: bool = False) -> Any:
    reason = "Device compute capability 10.0 or higher required for NVFP4 execution."
    return answer(is_since(10, 0), reason, return_reason)


def answer(is_available: bool, reason: str, return_reason: bool) -> Any:
    return (is_available, "" if is_available else reason) if return_reason else is_available


SUPPORT = {
    DelayedScaling: is_fp8_available,
    Float8CurrentScaling: is_fp8_available,
    Float8BlockScaling: is_fp8_block_scaling_available,
    MXFP8BlockScaling: is_mxfp8_available,
    NVFP4BlockScaling: is_nvfp4_available,
}


def get_default_recipe() -> Recipe:
    if is_mxfp8_available():
        return MXFP8BlockScaling()
    return Float8CurrentScaling() if is_since(12, 0) else DelayedScaling()


get_default_fp8_recipe = get_default_recipe


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> Iterator[None]:
    with autocast(enabled, calibrating, fp8_recipe):
        yield


@contextmanager
def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: Any = None,
    _graph: bool = False,
) -> Iterator[None]:
    before = Precision.recipe
    Precision.recipe = checked(recipe or get_default_recipe()) if enabled else None
    try:
        yield
    finally:
        Precision.recipe = before


def checked(recipe: Recipe) -> Recipe:
    """Raise what Transformer Engine raises, and for what is not known here."""
    kind = next((kind for kind in SUPPORT if isinstance(recipe, kind)), None)
    if kind is None:
        raise NotImplementedError(f"tally does not know the recipe {type(recipe).__name__}")
    is_available, reason = SUPPORT[kind](return_reason=True)
    if not is_available:
        raise RuntimeError(reason)
    if recipe.backward_override:
        raise NotImplementedError(
            "tally does not know backward_override of Transformer Engine's recipes"
        )
    if any(recipe.override_linear_precision):
        raise NotImplementedError(
            "tally does not know override_linear_precision of Transformer Engine's recipes "
            "(Megatron's fp8_wgrad=False)"
        )
    if recipe.fp8_mha and not recipe.fp8_dpa:
        raise NotImplementedError(
            "tally does not know fp8_mha without fp8_dpa of Transformer Engine's recipes"
        )
    if recipe.fp8_dpa and not recipe.float8_per_tensor_scaling():
        raise NotImplementedError(
            f"tally does not know fp8_dpa of Transformer Engine's {type(recipe).__name__}"
        )
    return recipe


class Operand(NamedTuple):
    """A matrix in products: over its rows, (M, K), and over its columns."""

    rows: Tensor
    row_scales: Tensor | None
    columns: Tensor
    column_scales: Tensor | None


class Float8Boundary:
    """What attention and the product behind it hand each other in float8, with its scale; what
    autograd sees between them has no memory.
    """

    result: tuple[Tensor, Tensor] | None = None
    gradient: tuple[Tensor, Tensor] | None = None


def stand_in(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(1, dtype=dtype).expand(x.shape)


def scaling_of(recipe: Recipe, is_weight: bool) -> str:
    if recipe.float8_block_scaling():
        return "square_block" if is_weight else "block"
    if recipe.mxfp8():
        return "mxfp8"
    if recipe.nvfp4():
        return "nvfp4"
    return "delayed" if recipe.delayed() else "current"


def dtype_of(recipe: Recipe, is_gradient: bool) -> torch.dtype:
    if recipe.nvfp4():
        return torch.float4_e2m1fn_x2
    is_wide = is_gradient and recipe.fp8_format is Format.HYBRID
    return torch.float8_e5m2 if is_wide else torch.float8_e4m3fn


def multiplies_columns(recipe: Recipe) -> bool:
    """The same float8 serves over rows and over columns: with one scale, where tensor cores take
    operands of any layout (`is_non_tn_fp8_gemm_supported` in pytorch/utils.py).
    """
    is_any_layout = is_since(10, 0) and not (is_since(12, 0) and not is_since(13, 0))
    return recipe.float8_per_tensor_scaling() and is_any_layout


def operand(
    x: Tensor,
    recipe: Recipe | None,
    *,
    rows: bool = True,
    columns: bool = True,
    is_weight: bool = False,
    is_gradient: bool = False,
    activation: str = "",
) -> Operand:
    """Operand of a matrix, or of an activation of one; itself where nothing is quantised."""
    operators = torch.ops.transformer_engine
    if recipe is None:
        matrix = operators.activation(x, activation) if activation else x
        return Operand(matrix, None, matrix, None)
    scaling, dtype = scaling_of(recipe, is_weight), dtype_of(recipe, is_gradient)
    if multiplies_columns(recipe):
        data, scale, _, _ = operators.quantize(x, scaling, dtype, True, False, activation)
        return Operand(data, scale, data, scale)
    data, scales, transposed, column_scales = operators.quantize(
        x, scaling, dtype, rows, columns, activation
    )
    is_shared = recipe.float8_per_tensor_scaling()
    return Operand(data, scales, transposed, scales if is_shared else column_scales)


def check_sizes(recipe: Recipe, *matrices: Tensor) -> None:
    """Raise what quantising raises (pytorch/utils.py, csrc/quantizer.cpp)."""
    block = 32 if recipe.mxfp8() else 16
    least_rows = {True: block, False: 8}[recipe.mxfp8() or recipe.nvfp4()]
    for matrix in matrices:
        *tokens, width = matrix.shape
        M = torch.Size(tokens).numel()
        if M % least_rows or width % block:
            raise AssertionError(
                "FP8 execution requires the product of all dimensions except the last to be "
                f"divisible by {least_rows} and the last dimension to be divisible by {block}, "
                f"but got {tuple(matrix.shape)}"
            )
