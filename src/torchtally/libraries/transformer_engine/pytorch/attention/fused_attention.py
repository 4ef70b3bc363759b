"""Attention by cuDNN, in half precision or in float8: what it keeps for the backward pass.

Queries, keys and values, its result, the rows' log-sum-exp in float32 and the state of random
numbers; in float8, with `fp8_dpa`, all but the last two with a byte for each number
(pytorch/attention/dot_product_attention/backends.py).

B: sequences.  S: queries.  H: heads.  D: head dim.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators.transformer_engine import laid_out

from ...common.recipe import Recipe
from ..quantization import Float8Boundary, dtype_of, scaling_of, stand_in

Window = tuple[int, int]


class CudnnOptions:
    def __init__(
        self, tensor_format: str, mask: str, window: Window, offsets: tuple[Any, ...]
    ) -> None:
        self.sequence_first = tensor_format == "sbhd"
        self.offsets = offsets
        self.mask = ("causal" in mask, "bottom_right" in mask, *window)

    @property
    def rest(self) -> tuple[Any, ...]:
        return *self.offsets, *self.mask


def heads_third(tensors: Iterable[Tensor], options: CudnnOptions) -> list[Tensor]:
    """(B, S, H, D), whatever lies first in memory."""
    return [tensor.transpose(0, 1) if options.sequence_first else tensor for tensor in tensors]


def are_interleaved(parts: Sequence[Tensor]) -> bool:
    """Queries, keys and values are one tensor, for each head one after the other (`sbh3d` of
    `get_qkv_layout`, pytorch/attention/dot_product_attention/utils.py).
    """
    query, *_ = parts
    places = {part.untyped_storage().data_ptr() for part in parts}
    layouts = {(part.shape, part.stride()) for part in parts}
    offsets = [part.storage_offset() for part in parts]
    return len(places) == len(layouts) == 1 and offsets == [i * query.shape[-1] for i in range(3)]


class CudnnAttention(torch.autograd.Function):
    """Attention of queries, keys and values by themselves, or in one tensor at a dimension of 3,
    whose gradient is one tensor, too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        bias: Tensor | None,
        packed_at: int,
        options: CudnnOptions,
    ) -> Tensor:
        parts = query.unbind(packed_at) if key is None or value is None else (query, key, value)
        operands = heads_third(parts, options)
        out, rows, state = torch.ops.transformer_engine.cudnn_attention(
            *operands, bias, *options.rest, options.sequence_first
        )
        ctx.save_for_backward(*operands, bias, out, rows, state)
        ctx.is_interleaved = key is not None and are_interleaved(parts)
        ctx.options, ctx.packed_at = options, None if key is not None else packed_at
        ctx.shape = query.shape
        result: Tensor = out.transpose(0, 1) if options.sequence_first else out
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, bias, out, rows, _ = ctx.saved_tensors
        options = ctx.options
        (grad,) = heads_third((grad.contiguous(),), options)
        grad_bias = None
        if bias is not None and ctx.needs_input_grad[3]:
            grad_bias = torch.empty_like(bias)
        if ctx.packed_at is not None:
            packed = query.new_empty(ctx.shape)
            grads = heads_third(packed.unbind(ctx.packed_at), options)
            answers: tuple[Any, ...] = (packed, None, None)
        elif ctx.is_interleaved:
            *tokens, width = ctx.shape
            answers = query.new_empty((*tokens, 3, width)).unbind(-2)
            grads = heads_third(answers, options)
        else:
            grads = [laid_out(x, x.shape[-1], options.sequence_first) for x in (query, key, value)]
            answers = tuple(heads_third(tuple(grads), options))
        torch.ops.transformer_engine.cudnn_attention_backward(
            grad, query, key, value, bias, out, rows, *grads, grad_bias, *options.rest
        )
        return *answers, grad_bias, None, None


class Float8Attention(torch.autograd.Function):
    """cuDNN's of float8 operands, `fp8_dpa` (`FusedAttnFunc` in backends.py): queries, keys and
    values are quantised together and kept so, for backward, too.

    By steps before, results and gradients are float8 as well, and converted back; by its own
    largest value, cuDNN writes them in half precision.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        packed_at: int,
        options: CudnnOptions,
        recipe: Recipe,
        boundary: Float8Boundary | None,
    ) -> Tensor:
        is_packed = key is None or value is None
        parts: tuple[Any, ...] = query.unbind(packed_at) if is_packed else (query, key, value)
        kept, scale = quantized_together(query, parts, packed_at, recipe, is_packed)
        operands = heads_third(kept, options)
        of_result = None if recipe.delayed() else query.dtype
        out, rows, state = torch.ops.transformer_engine.cudnn_attention(
            *operands, None, *options.rest, options.sequence_first, of_result
        )
        half, scales = out, [scale]
        if of_result is None:
            scales.append(torch.empty_like(scale))
            if boundary is None:
                half = dequantized(out, scales[-1], query.dtype, options)
            else:
                (as_it_lies,) = heads_third((out,), options)
                boundary.result = as_it_lies.flatten(-2).flatten(0, -2), scales[-1]
                half = stand_in(out, query.dtype)
        if is_backward_in_float8():
            ctx.save_for_backward(*operands, out, rows, state, *scales)
        else:
            ctx.save_for_backward(*heads_third(parts, options), half, rows, state)
        ctx.options, ctx.recipe, ctx.dtype = options, recipe, query.dtype
        ctx.boundary = boundary
        ctx.packed_at, ctx.shape = packed_at if is_packed else None, query.shape
        result: Tensor = half.transpose(0, 1) if options.sequence_first else half
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, out, rows, *_ = ctx.saved_tensors
        options, recipe = ctx.options, ctx.recipe
        dtype = ctx.dtype
        if ctx.boundary is not None:
            given, scale = ctx.boundary.gradient
            ctx.boundary.gradient = None
            grad, dtype = given.view(grad.shape), given.dtype
        elif is_backward_in_float8():
            grad = grad.contiguous()
            wide = dtype_of(recipe, is_gradient=True)
            grad, scale = quantized(grad, recipe, wide)
            dtype = wide if recipe.delayed() else dtype
        else:
            grad = grad.contiguous()
        (grad,) = heads_third((grad,), options)
        if ctx.packed_at is not None:
            whole = query.new_empty(ctx.shape, dtype=dtype)
            grads = heads_third(whole.unbind(ctx.packed_at), options)
        else:
            grads = [
                laid_out(x, x.shape[-1], options.sequence_first, dtype) for x in (query, key, value)
            ]
        torch.ops.transformer_engine.cudnn_attention_backward(
            grad, query, key, value, None, out, rows, *grads, None, *options.rest
        )
        if ctx.packed_at is not None:
            if dtype is not ctx.dtype:
                whole = dequantize(whole, torch.empty_like(scale), ctx.dtype)
            return whole, None, None, None, None, None, None
        answers = heads_third(grads, options)
        if dtype is not ctx.dtype:
            scale = torch.empty_like(scale)
            flat = dequantize(torch.cat([x.reshape(-1) for x in answers]), scale, ctx.dtype)
            answers = list(split_as(flat, answers))
        return *answers, None, None, None, None


def is_backward_in_float8() -> bool:
    return os.environ.get("NVTE_FP8_DPA_BWD", "1") != "0"


def quantized(x: Tensor, recipe: Recipe, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(numbers, scale), over rows alone: attention transposes by itself."""
    data, scale, _, _ = torch.ops.transformer_engine.quantize(
        x, scaling_of(recipe, is_weight=False), dtype, True, False, ""
    )
    return data.view(x.shape), scale


def quantized_together(
    query: Tensor, parts: tuple[Any, ...], packed_at: int, recipe: Recipe, is_packed: bool
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Those that are tensors of their own are copied into one first (`combine_and_quantize`)."""
    dtype = dtype_of(recipe, is_gradient=False)
    if is_packed:
        whole, scale = quantized(query, recipe, dtype)
        return whole.unbind(packed_at), scale
    flat, scale = quantized(torch.cat([x.reshape(-1) for x in parts]), recipe, dtype)
    return split_as(flat, parts), scale


def split_as(flat: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One after the other, in the shapes of these."""
    pieces = flat.split([part.numel() for part in parts])
    return tuple(piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True))


def dequantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    half: Tensor = torch.ops.transformer_engine.dequantize(x, scale, dtype)
    return half


def dequantized(out: Tensor, scale: Tensor, dtype: torch.dtype, options: CudnnOptions) -> Tensor:
    """Tensor as it lies in memory, (B, S, H, D)."""
    (as_it_lies,) = heads_third((out,), options)
    (half,) = heads_third((dequantize(as_it_lies, scale, dtype),), options)
    return half
