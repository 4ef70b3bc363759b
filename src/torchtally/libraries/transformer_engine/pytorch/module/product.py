"""Products with what stands before them, and what they keep.

What is kept for backward is what the modules keep (pytorch/module/linear.py, layernorm_linear.py,
layernorm_mlp.py, pytorch/tensor): of the input the copy that is read over its columns, which the
gradient of the weight is made from, and in `LayerNormMLP` the other one, too; of the weight both.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.recipe import Recipe
from ..quantization import (
    Float8Boundary,
    Operand,
    check_sizes,
    dtype_of,
    is_since,
    multiplies_columns,
    operand,
    stand_in,
)
from ..tensor_parallel import ALONE, TensorParallel, Wait, now

MIB = 1 << 20


HELD: dict[object, Tensor] = {}
"""What is taken once: cuBLASLt's workspace, and what autograd is given where a gradient has been
added elsewhere, one of each shape. The end of a run empties it (`virtual/extensions/absent.py`)."""


def get_workspace() -> Tensor:
    """cuBLASLt's (pytorch/cpp_extensions/gemm.py)."""
    if "workspace" not in HELD:
        size = 32 * MIB if is_since(9, 0) else 4 * MIB
        HELD["workspace"] = torch.empty(size, dtype=torch.uint8, device="cuda")
    return HELD["workspace"]


def gemm(
    a: tuple[Tensor, Tensor | None],
    b: tuple[Tensor, Tensor | None],
    bias: Tensor | None,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
) -> Tensor:
    """(M, K) @ (N, K)."""
    get_workspace()
    result: Tensor = torch.ops.transformer_engine.gemm(a[0], b[0], a[1], b[1], bias, dtype, *sizes)
    return result


def gemm_into(
    out: Tensor,
    a: tuple[Tensor, Tensor | None],
    b: tuple[Tensor, Tensor | None],
    bias: Tensor | None,
    sizes: tuple[int, int, int],
    adds: bool = False,
) -> None:
    """The same, for a group without rows nothing."""
    get_workspace()
    if out.numel():
        torch.ops.transformer_engine.gemm_into(a[0], b[0], a[1], b[1], bias, out, *sizes, adds)


def get_dummy_wgrad(shape: Sequence[int], dtype: torch.dtype, zero: bool = False) -> Tensor:
    key = (shape[0], shape[1], dtype)
    if key not in HELD:
        HELD[key] = torch.empty(*shape, dtype=dtype, device="cuda")
    if zero:
        HELD[key].fill_(0)
    return HELD[key].detach()


class MainGradient:
    """A weight's gradient in memory of the trainer's, `main_grad`, which the product that makes it
    writes to, or adds to after the first micro-batch (`fuse_wgrad_accumulation`).
    """

    def __init__(self, weight: Any, adds: bool) -> None:
        self.weight, self.adds = weight, adds

    def take(
        self,
        a: tuple[Tensor, Tensor | None],
        b: tuple[Tensor, Tensor | None],
        sizes: tuple[int, int, int],
    ) -> Tensor | None:
        """What autograd is told: a dummy where the trainer looks at `grad_added_to_main_grad`."""
        gemm_into(self.weight.main_grad, a, b, None, sizes, self.adds)
        if not hasattr(self.weight, "grad_added_to_main_grad"):
            return None
        self.weight.grad_added_to_main_grad = True
        zero = getattr(self.weight, "zero_out_wgrad", False)
        return get_dummy_wgrad(self.weight.main_grad.shape, self.weight.dtype, zero)


class ProductOptions:
    def __init__(
        self,
        recipe: Recipe | None,
        *,
        activation: str = "",
        keeps_rows: bool = False,
        keeps_input: bool = False,
        weights: Operand | None = None,
        parallel: TensorParallel = ALONE,
        boundary: Float8Boundary | None = None,
        gradient: MainGradient | None = None,
    ) -> None:
        self.recipe = recipe
        self.gradient = gradient
        self.parallel = parallel
        self.boundary = boundary
        self.activation = activation
        self.keeps_rows = keeps_rows
        self.keeps_input = keeps_input and recipe is not None
        """As given; quantised again for the weight's gradient (`save_original_input`)."""
        self.weights = weights
        """Quantised before, for several micro-batches."""


def own_operand(
    x: Tensor,
    recipe: Recipe | None,
    parallel: TensorParallel,
    *,
    columns: bool,
    is_gradient: bool = False,
) -> Operand:
    """Operand of a rank's rows, to be gathered: quantised before. With a scale for the whole
    tensor, the same on all ranks, only what is read over rows can be gathered.
    """
    if recipe is None:
        return Operand(x, None, x, None)
    if recipe.mxfp8():
        return operand(x, recipe, columns=columns, is_gradient=is_gradient)
    if not recipe.delayed():
        parallel.agree_on_scale(x)
    rows, scale, *_ = operand(x, recipe, columns=False, is_gradient=is_gradient)
    return Operand(rows, scale, rows, scale)


def with_columns(gathered: Operand, recipe: Recipe | None) -> Operand:
    """What is gathered over rows alone is transposed where products read it over columns."""
    if recipe is None or recipe.mxfp8() or multiplies_columns(recipe):
        return gathered
    return Operand(*gathered[:2], gathered.rows.t().contiguous(), gathered.row_scales)


class Product(torch.autograd.Function):
    """activation(x) @ weight.T + bias, of (M, K) and (N, K)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: ProductOptions
    ) -> Tensor:
        recipe, (needs_x, needs_weight, _) = options.recipe, ctx.needs_input_grad[:3]
        dtype, parallel = x.dtype, options.parallel
        if recipe is None:
            weight = weight.to(dtype)
        if parallel.gathers_inputs:
            own = own_operand(x, recipe, parallel, columns=needs_weight)
            over_rows = Operand(*own[:2], own.columns[:0], None)
            inputs = now(parallel.gather(over_rows, recipe))
        elif options.boundary is not None and options.boundary.result is not None:
            own = inputs = Operand(*options.boundary.result, *options.boundary.result)
            options.boundary.result = None
        else:
            options.boundary = None
            columns = needs_weight and not options.keeps_input
            own = inputs = operand(x, recipe, columns=columns, activation=options.activation)
        weights = options.weights or operand(weight, recipe, columns=needs_x, is_weight=True)
        N, K = weight.shape
        M = inputs.rows.shape[0]
        out = gemm(inputs[:2], weights[:2], bias, dtype, (M, N, K))
        if parallel.is_row:
            out = now(parallel.reduce(out))
        kept_inputs = own if options.keeps_rows else (None, None, *own[2:])
        if options.keeps_input:
            kept_inputs = (None, None, x, None)
        ctx.save_for_backward(
            *(kept_inputs if needs_weight else (None,) * 4),
            *weights,
            x if options.activation else None,
        )
        ctx.options, ctx.sizes, ctx.dtype = options, (M, N, K), dtype
        answer: Tensor = out
        return answer

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        _, _, columns, scales, *weights, x = ctx.saved_tensors
        (M, N, K), dtype, options = ctx.sizes, ctx.dtype, ctx.options
        recipe, (needs_x, needs_weight, needs_bias) = options.recipe, ctx.needs_input_grad[:3]
        grad, parallel = grad.contiguous(), options.parallel
        if parallel.gathers_gradients:
            own = own_operand(grad, recipe, parallel, columns=needs_weight, is_gradient=True)
            grads = with_columns(now(parallel.gather(own, recipe)), recipe)
        else:
            grads = operand(grad, recipe, rows=needs_x, columns=needs_weight, is_gradient=True)
        grad_x = grad_weight = None
        waits: list[Wait] = []
        if parallel.gathers_inputs and needs_weight:
            is_shared = recipe is None or recipe.float8_per_tensor_scaling()
            own = Operand(columns if is_shared else columns[:0], scales, columns, scales)
            gathered, wait_for_columns = parallel.gather(own, recipe)
            waits.append(wait_for_columns)
        if needs_x:
            handed = dtype if options.boundary is None else dtype_of(recipe, is_gradient=True)
            grad_x = gemm(grads[:2], weights[2:], None, handed, (M, K, N))
            if options.boundary is not None:
                scale = grad_x.new_empty((1, 1), dtype=torch.float32)
                options.boundary.gradient = grad_x, scale
                grad_x = stand_in(grad_x, dtype)
            for wait in waits:
                wait()
            waits.clear()
            if parallel.is_column:
                grad_x, wait_for_sums = parallel.reduce(grad_x)
                waits.append(wait_for_sums)
        if needs_weight:
            if parallel.gathers_inputs:
                *_, columns, scales = with_columns(gathered, recipe)
            elif options.boundary is not None:
                *_, columns, _ = with_columns(Operand(columns, scales, columns, scales), recipe)
            elif options.keeps_input:
                *_, columns, scales = operand(columns, recipe, rows=False)
            operands = grads[2:], (columns, scales)
            if options.gradient is not None:
                grad_weight = options.gradient.take(*operands, (N, K, M))
            else:
                grad_weight = gemm(*operands, None, dtype, (N, K, M))
        for wait in waits:
            wait()
        if options.activation and grad_x is not None:
            grad_x = torch.ops.transformer_engine.activation_backward(grad_x, x, options.activation)
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


class JoinedParameters(torch.autograd.Function):
    """Parameters that lie behind each other as one, without a copy (`noop_cat`)."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, *parts: Tensor) -> Tensor:
        ctx.sizes = [part.shape[0] for part in parts]
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *grad.split(ctx.sizes)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, options: ProductOptions) -> Tensor:
    """Product of an input with any number of dimensions."""
    if options.recipe is not None:
        check_sizes(options.recipe, x, weight)
    bias = None if bias is None else bias.to(x.dtype)
    flat = x.reshape(-1, x.shape[-1])
    added_after = bias if options.parallel.adds_bias_after else None
    fused = None if options.parallel.adds_bias_after else bias
    out: Tensor = Product.apply(flat, weight, fused, options)  # type: ignore[no-untyped-call]
    if added_after is not None:
        out = out + added_after
    first, *others = x.shape[:-1]
    return out.view(options.parallel.rows_after(first), *others, weight.shape[0])
