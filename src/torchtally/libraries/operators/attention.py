"""Attention by FlashAttention's kernels as a differentiable function.

Arguments and what is kept are those of `FlashAttnFunc` and `FlashAttnVarlenFunc` (flash_attn 2.8:
flash_attn_interface.py; version 3: hopper/flash_attn_interface.py).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtally.libraries.operators import flash_attention  # noqa: F401 (defines the operators)

WRONG_DTYPE = "FlashAttention only support fp16 and bf16 data type"
"""The kernels' own words (csrc/flash_attn/flash_api.cpp)."""
HALVES = (torch.float16, torch.bfloat16)
FLOAT8 = torch.float8_e4m3fn
LARGEST_HEAD = 256
WRONG_HEAD = "FlashAttention forward only supports head dimension at most 256"
NO_CUDA = "FlashAttention only supports CUDA tensors: got {} on {}"


@dataclass(frozen=True, slots=True)
class FlashOptions:
    version: int
    causal: bool
    window: tuple[int, int]
    deterministic: bool = False
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0

    @property
    def offsets(self) -> tuple[Any, ...]:
        return self.cu_seqlens_q, self.cu_seqlens_k, self.max_seqlen_q, self.max_seqlen_k

    @property
    def mask(self) -> tuple[Any, ...]:
        return self.causal, *self.window


def origin(name: str, tensor: Tensor) -> str:
    """Which operand has the wrong dtype, what made it, and what to do."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    made = f", made by {tensor.grad_fn.name()}" if tensor.grad_fn is not None else ""
    # PyTorch 2.12 put rms_norm on autocast's list of float32 (ATen/autocast_mode.h).
    autocast = "rmsnorm" in made.lower() and torch.is_autocast_enabled("cuda")
    reason = "; autocast runs rms_norm in float32 from PyTorch 2.12 on" if autocast else ""
    return f"the {name} is {dtype}{made}{reason}. Cast it, as by {name}.to(torch.bfloat16)"


def check(options: FlashOptions, *operands: Tensor) -> None:
    """Raise what the kernels raise."""
    allowed = (*HALVES, FLOAT8) if options.version == 3 else HALVES
    for name, tensor in zip(("query", "key", "value"), operands, strict=False):
        if tensor.dtype not in allowed:
            raise RuntimeError(f"{WRONG_DTYPE}: {origin(name, tensor)}")
    if any(tensor.shape[-1] > LARGEST_HEAD for tensor in operands):
        raise RuntimeError(WRONG_HEAD)


def with_last_stride_one(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if tensor.stride(-1) != 1 else tensor


def pad_heads(tensor: Tensor) -> Tensor:
    """A head dim that is a multiple of 8."""
    head = tensor.shape[-1]
    return F.pad(tensor, [0, 8 - head % 8]) if head % 8 else tensor


def forward(
    options: FlashOptions, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(result, log-sum-exp, state of random numbers)."""
    check(options, query, key, value)
    operands = [with_last_stride_one(tensor) for tensor in (query, key, value)]
    if options.version == 3:
        out, rows = torch.ops.flash_attn_3.forward(*operands, *options.offsets, *options.mask)
        return out, rows, None
    out, rows, state = torch.ops.flash_attn.forward(*operands, *options.offsets, *options.mask)
    return out, rows, state


def backward(
    options: FlashOptions, grad: Tensor, saved: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> Any:
    """Write the gradients; `saved` are query, key, value, result and log-sum-exp. Returns what the
    operator does: of version 2 rows' sums of gradient * result.
    """
    operator = torch.ops.flash_attn_3 if options.version == 3 else torch.ops.flash_attn
    operands = [with_last_stride_one(tensor) for tensor in (grad, *saved[:4])]
    return operator.backward(
        *operands, saved[4], *grads, *options.offsets, *options.mask, options.deterministic
    )


class FlashAttentionFunction(torch.autograd.Function):
    """Attention of (query, key, value)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, options: FlashOptions) -> Any:
        query, key, value = pad_heads(query), pad_heads(key), pad_heads(value)
        out, rows, state = forward(options, query, key, value)
        kept = (query, key, value, out, rows)
        ctx.save_for_backward(*kept, *(() if state is None else (state,)))
        ctx.options = options
        ctx.mark_non_differentiable(rows)
        ctx.set_materialize_grads(False)
        return out, rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        query, key, value, out, rows, *_ = ctx.saved_tensors
        grads = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        backward(ctx.options, pad_heads(grad), (query, key, value, out, rows), grads)
        return *grads, None


class PackedAttention(torch.autograd.Function):
    """Attention of queries, keys and values in one tensor, whose gradient is one tensor, too: (..,
    3, H, D), or of queries beside keys and values, (.., 2, H, D).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor | None, packed: Tensor, options: FlashOptions) -> Any:
        parts = packed.unbind(-3)
        query, key, value = parts if query is None else (query, *parts)
        out, rows, state = forward(options, query, key, value)
        kept = (query, key, value, out, rows)
        ctx.save_for_backward(*kept, *(() if state is None else (state,)))
        ctx.options, ctx.shape, ctx.is_whole = options, packed.shape, len(parts) == 3
        ctx.mark_non_differentiable(rows)
        ctx.set_materialize_grads(False)
        return out, rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        query, key, value, out, rows, *_ = ctx.saved_tensors
        packed = query.new_empty(ctx.shape)
        parts = packed.unbind(-3)
        grad_query = None if ctx.is_whole else torch.empty_like(query)
        grads = parts if grad_query is None else (grad_query, *parts)
        backward(ctx.options, grad, (query, key, value, out, rows), grads)
        return grad_query, packed, None


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: FlashOptions
) -> tuple[Tensor, Tensor]:
    """(result, log-sum-exp)."""
    head = value.shape[-1]
    out, rows = FlashAttentionFunction.apply(query, key, value, options)  # type: ignore[no-untyped-call]
    return (out if out.shape[-1] == head else out[..., :head]), rows


def attend_packed(
    query: Tensor | None, packed: Tensor, options: FlashOptions
) -> tuple[Tensor, Tensor]:
    """(result, log-sum-exp)."""
    if packed.shape[-1] % 8:
        parts = packed.unbind(-3)
        query, key, value = parts if query is None else (query, *parts)
        return attend(query, key, value, options)
    out, rows = PackedAttention.apply(query, packed, options)  # type: ignore[no-untyped-call]
    return out, rows
