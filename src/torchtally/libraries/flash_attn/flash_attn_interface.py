"""The functions of flash_attn.flash_attn_interface, with its arguments and results."""

from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators.attention import (
    FlashOptions,
    attend,
    attend_packed,
    backward,
    check,
    forward,
)

VERSION = 2
Window = tuple[int, int]
ALL: Window = (-1, -1)


def answer(out: Tensor, rows: Tensor, return_attn_probs: bool) -> Any:
    return (out, rows, None) if return_attn_probs else out


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = ALL, softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(VERSION, causal, tuple(window_size), deterministic)  # type: ignore[arg-type]
    return answer(*attend(q, k, v, options), return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = ALL, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(VERSION, causal, tuple(window_size), deterministic)  # type: ignore[arg-type]
    return answer(*attend_packed(None, qkv, options), return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = ALL, softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(VERSION, causal, tuple(window_size), deterministic)  # type: ignore[arg-type]
    return answer(*attend_packed(q, kv, options), return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = ALL,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    options = FlashOptions(
        VERSION, causal, tuple(window_size), deterministic, cu_seqlens_q, cu_seqlens_k,  # type: ignore[arg-type]
        max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    return answer(*attend(q, k, v, options), return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = ALL,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(
        VERSION, causal, tuple(window_size), deterministic, cu_seqlens, cu_seqlens,  # type: ignore[arg-type]
        max_seqlen, max_seqlen,
    )  # fmt: skip
    return answer(*attend_packed(None, qkv, options), return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = ALL, softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(
        VERSION, causal, tuple(window_size), deterministic, cu_seqlens_q, cu_seqlens_k,  # type: ignore[arg-type]
        max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    return answer(*attend_packed(q, kv, options), return_attn_probs)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
    v: Tensor | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
    cache_seqlens: Any = None, cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = ALL,
    softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None,
    num_splits: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Queries attend to as much of the cache as is filled, where that is given as a number; else to
    all that it has space for.
    """
    check(FlashOptions(VERSION, causal, tuple(window_size)), q)  # type: ignore[arg-type]
    if isinstance(cache_seqlens, int):
        filled = cache_seqlens + (0 if k is None else k.shape[1])
        k_cache, v_cache = k_cache[:, :filled], v_cache[:, :filled]
    out, rows = torch.ops.flash_attn.with_cache(q, k_cache, v_cache, k, v, causal, *window_size)
    return (out, rows) if return_softmax_lse else out


# Passes ----------------------------------------------------------------------------------------
# What libraries that split a sequence over ranks call (ring-flash-attn): neither is differentiable.


def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Result, log-sum-exp, no probabilities, and the state of random numbers."""
    options = FlashOptions(VERSION, causal, (window_size_left, window_size_right))
    out, rows, state = forward(options, q, k, v)
    return out, rows, None, state


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, return_softmax: bool = False,
    block_table: Tensor | None = None, leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None, zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The same of packed sequences."""
    options = FlashOptions(
        VERSION, causal, (window_size_left, window_size_right), False, cu_seqlens_q, cu_seqlens_k,
        max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    out, rows, state = forward(options, q, k, v)
    return out, rows, None, state


def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor,
    dk: Tensor, dv: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool, rng_state: Tensor | None = None,
) -> Any:  # fmt: skip
    """Writes dq, dk and dv; rows' sums of gradient * result."""
    options = FlashOptions(VERSION, causal, (window_size_left, window_size_right), deterministic)
    return backward(options, dout, (q, k, v, out, softmax_lse), (dq, dk, dv))


def _flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor,
    dk: Tensor, dv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool, rng_state: Tensor | None = None, zero_tensors: bool = False,
) -> Any:  # fmt: skip
    """The same of packed sequences."""
    options = FlashOptions(
        VERSION, causal, (window_size_left, window_size_right), deterministic, cu_seqlens_q,
        cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    return backward(options, dout, (q, k, v, out, softmax_lse), (dq, dk, dv))
