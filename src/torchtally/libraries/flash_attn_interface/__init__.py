"""flash_attn_interface: FlashAttention 3, with its arguments and results."""

from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators.attention import FlashOptions, attend, attend_packed, check

__version__ = "3.0.0"
VERSION = 3
Window = tuple[int, int]
ALL: Window = (-1, -1)


def answer(out: Tensor, rows: Tensor, return_attn_probs: bool) -> Any:
    return (out, rows) if return_attn_probs else out


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, window_size: Window = ALL, attention_chunk: int = 0,
    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(VERSION, causal, tuple(window_size), deterministic)  # type: ignore[arg-type]
    return answer(*attend(q, k, v, options), return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor, softmax_scale: float | None = None, causal: bool = False,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, window_size: Window = ALL, attention_chunk: int = 0,
    softcap: float = 0.0, deterministic: bool = False, num_heads_q: int | None = None,
    sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(VERSION, causal, tuple(window_size), deterministic)  # type: ignore[arg-type]
    if num_heads_q is None:
        return answer(*attend_packed(None, qkv, options), return_attn_probs)
    shared = (qkv.shape[-2] - num_heads_q) // 2
    q, k, v = qkv.split([num_heads_q, shared, shared], dim=-2)
    return answer(*attend(q, k, v, options), return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, window_size: Window = ALL, attention_chunk: int = 0,
    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    options = FlashOptions(
        VERSION, causal, tuple(window_size), deterministic, cu_seqlens_q, cu_seqlens_k,  # type: ignore[arg-type]
        max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    return answer(*attend(q, k, v, options), return_attn_probs)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
    v: Tensor | None = None, qv: Tensor | None = None, rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None, cache_seqlens: Any = None,
    cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = ALL,
    attention_chunk: int = 0, softcap: float = 0.0, rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None, num_splits: int = 0,
    pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention as version 2's: over all that the cache has space for, or as much as a number
    says.
    """
    check(FlashOptions(VERSION, causal, tuple(window_size)), q)  # type: ignore[arg-type]
    if isinstance(cache_seqlens, int):
        filled = cache_seqlens + (0 if k is None else k.shape[1])
        k_cache, v_cache = k_cache[:, :filled], v_cache[:, :filled]
    out, rows = torch.ops.flash_attn.with_cache(q, k_cache, v_cache, k, v, causal, *window_size)
    return (out, rows) if return_softmax_lse else out
