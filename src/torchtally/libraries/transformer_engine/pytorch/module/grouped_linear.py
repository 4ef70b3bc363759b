"""transformer_engine.pytorch.module.grouped_linear: the experts of a mixture."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..quantization import check_sizes, operand
from ..tensor_parallel import TensorParallel, divide
from .base import TransformerEngineBaseModule, cast, default_init_method
from .product import ProductOptions, gemm, gemm_into


class GroupedProduct(torch.autograd.Function):
    """Products of each group's rows of x @ its weight.T + its bias: the experts of a mixture."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rows: Sequence[int],
        options: Sequence[ProductOptions],
        *parameters: Tensor,
    ) -> Tensor:
        recipe, count = options[0].recipe, len(rows)
        needs_x, needs_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        weights, biases = parameters[:count], parameters[count:] or (None,) * count
        N, K = weights[0].shape
        out = x.new_empty((x.shape[0], N))
        kept: list[Tensor | None] = []
        for part, into, weight, bias, option in zip(
            x.split(rows), out.split(rows), weights, biases, options, strict=True
        ):
            inputs = operand(part, recipe, columns=needs_weight and not option.keeps_input)
            cast_weight = weight if recipe is not None else weight.to(x.dtype)
            matrix = option.weights or operand(cast_weight, recipe, columns=needs_x, is_weight=True)
            bias = None if bias is None else bias.to(x.dtype)
            gemm_into(into, inputs[:2], matrix[:2], bias, (part.shape[0], N, K))
            columns = (part, None) if option.keeps_input else inputs[2:]
            kept += [*(columns if needs_weight else (None, None)), *matrix]
        ctx.save_for_backward(*kept)
        ctx.rows, ctx.options, ctx.sizes = rows, options, (N, K)
        ctx.has_bias = len(parameters) > count
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        needs_x, needs_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        N, K = ctx.sizes
        grad = grad.contiguous()
        grad_x = grad.new_empty((grad.shape[0], K)) if needs_x else None
        into = (None,) * len(ctx.rows) if grad_x is None else grad_x.split(ctx.rows)
        saved = ctx.saved_tensors
        groups = [saved[at : at + KEPT_OF_GROUP] for at in range(0, len(saved), KEPT_OF_GROUP)]
        grad_weights: list[Tensor | None] = []
        grad_biases: list[Tensor] = []
        for part, rows_of_x, (columns, scales, *weights), option in zip(
            grad.split(ctx.rows), into, groups, ctx.options, strict=True
        ):
            M, recipe = part.shape[0], option.recipe
            grads = operand(part, recipe, rows=needs_x, columns=needs_weight, is_gradient=True)
            if rows_of_x is not None:
                gemm_into(rows_of_x, grads[:2], weights[2:], None, (M, K, N))
            if needs_weight:
                if option.keeps_input:
                    *_, columns, scales = operand(columns, recipe, rows=False)
                operands = grads[2:], (columns, scales)
                if option.gradient is not None:
                    grad_weights.append(option.gradient.take(*operands, (N, K, M)))
                else:
                    grad_weights.append(gemm(*operands, None, grad.dtype, (N, K, M)))
            if ctx.has_bias:
                grad_biases.append(part.sum(0))
        no_weights = () if needs_weight else (None,) * len(ctx.rows)
        return grad_x, None, None, *grad_weights, *no_weights, *grad_biases


KEPT_OF_GROUP = 6
"""What `GroupedProduct` keeps: the input's columns and their scales, and the weight's operands."""


class GroupedLinear(TransformerEngineBaseModule):
    """Products of as many groups of rows, each with a weight of its own."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        tp_group: Any = None,
        tp_size: int = 1,
        parallel_mode: str | None = None,
        sequence_parallel: bool = False,
        init_method: Callable[[Tensor], Any] | None = None,
        save_original_input: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        parallel = TensorParallel(tp_group, tp_size, parallel_mode, sequence_parallel)
        if parallel.size > 1 and bias:
            raise ValueError(
                "GroupedLinear doesn't support bias when TP > 1. Because the TP communication is "
                "handled outside of this module."
            )
        if parallel.is_column:
            out_features = divide(out_features, parallel.size)
        elif parallel.is_row:
            in_features = divide(in_features, parallel.size)
        self.num_gemms, self.save_original_input = num_gemms, save_original_input
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        initialize = init_method or default_init_method
        for number in range(num_gemms):
            shape = (out_features, in_features)
            self.add_parameter(f"weight{number}", shape, None, initialize, params_dtype, device)
            if bias:
                self.add_parameter(
                    f"bias{number}", shape[:1], None, nn.init.zeros_, params_dtype, device
                )
        self.mark(parallel_mode, parallel.is_by_sequence)

    def parameters_named(self, name: str) -> list[Tensor]:
        return [getattr(self, f"{name}{number}") for number in range(self.num_gemms)]

    def forward(
        self, inp: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None
    ) -> Any:
        rows = [int(count) for count in m_splits]
        assert len(rows) == self.num_gemms, "Number of splits should match number of GEMMs."
        weights = self.parameters_named("weight")
        x = cast(inp, weights[0])
        flat = x.reshape(-1, x.shape[-1])
        options = [
            self.options(
                f"weight{number}", weight, is_first_microbatch, keeps_input=self.save_original_input
            )
            for number, weight in enumerate(weights)
        ]
        recipe = options[0].recipe
        if recipe is not None:
            for part in flat.split(rows):
                check_sizes(recipe, part, weights[0])
        biases = self.parameters_named("bias") if self.use_bias else []
        added = [] if self.return_bias else biases
        out = GroupedProduct.apply(flat, rows, options, *weights, *added)  # type: ignore[no-untyped-call]
        out = out.view(*x.shape[:-1], self.out_features)
        if not self.return_bias:
            return out
        return out, [bias.to(x.dtype) for bias in biases]
