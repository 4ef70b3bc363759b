"""FlashAttention's kernels, versions 2 and 3 (Dao-AILab/flash-attention: csrc/flash_attn, hopper).

B: sequences.  S: queries.  T: keys.  H: query heads, H_kv: key heads.  D: head dim.

Queries are (B, S, H, D), or packed sequences (total, H, D) with their offsets. Each forward keeps
the rows' log-sum-exp in float32, and version 2 the state of its random numbers. What backward
takes besides is in `memory/workspace/flash_attention.py`.
"""

import torch
from torch import Tensor

from torchtally.libraries.operators.registry import define

OPTIONS = "bool causal, int window_size_left, int window_size_right"
OFFSETS = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
OPERANDS = "Tensor query, Tensor key, Tensor value"
GRADS = "Tensor(a!) grad_query, Tensor(b!) grad_key, Tensor(c!) grad_value"
TILE = 128


def rows_of(query: Tensor, max_seqlen: int) -> Tensor:
    """The log-sum-exp of each row of scores: (B, H, S); of packed sequences (H, total)."""
    *tokens, H, _ = query.shape
    shape = (tokens[0], H, tokens[1]) if len(tokens) == 2 else (H, tokens[0])
    return query.new_empty(shape, dtype=torch.float32)


def result_of(query: Tensor, value: Tensor) -> Tensor:
    if query.shape[-1] == value.shape[-1]:
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@define("flash_attn", f"forward({OPERANDS}, {OFFSETS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)")
def forward_2(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, causal: bool,
    window_size_left: int, window_size_right: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(result, log-sum-exp, state of random numbers)."""
    state = query.new_empty(2, dtype=torch.int64)
    return torch.empty_like(query), rows_of(query, max_seqlen_q), state


@define(
    "flash_attn",
    f"backward(Tensor grad_out, {OPERANDS}, Tensor out, Tensor softmax_lse, {GRADS}, {OFFSETS}, "
    f"{OPTIONS}, bool deterministic) -> Tensor",
)
def backward_2(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, softmax_lse: Tensor,
    grad_query: Tensor, grad_key: Tensor, grad_value: Tensor, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, causal: bool,
    window_size_left: int, window_size_right: int, deterministic: bool,
) -> Tensor:  # fmt: skip
    """Rows' sums of gradient * result, in whole tiles of 128 queries."""
    H = query.shape[-2]
    if cu_seqlens_q is None:
        rows: tuple[int, ...] = (query.shape[0], H, rounded(query.shape[1], TILE))
    else:
        rows = (H, query.shape[0] + TILE * (cu_seqlens_q.shape[0] - 1))
    return query.new_empty(rows, dtype=torch.float32)


@define("flash_attn_3", f"forward({OPERANDS}, {OFFSETS}, {OPTIONS}) -> (Tensor, Tensor)")
def forward_3(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, causal: bool,
    window_size_left: int, window_size_right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(result, log-sum-exp). Of float8 operands the result is bfloat16 (hopper/flash_api.cpp)."""
    out = result_of(query, value)
    is_float8 = query.element_size() == 1
    out = out.new_empty(out.shape, dtype=torch.bfloat16) if is_float8 else out
    return out, rows_of(query, max_seqlen_q)


@define(
    "flash_attn_3",
    f"backward(Tensor grad_out, {OPERANDS}, Tensor out, Tensor softmax_lse, {GRADS}, {OFFSETS}, "
    f"{OPTIONS}, bool deterministic) -> ()",
)
def backward_3(*arguments: object) -> None:
    """All results are written to."""


def rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@define(
    "flash_attn",
    "with_cache(Tensor query, Tensor(a!) key, Tensor(b!) value, Tensor? new_key, "
    f"Tensor? new_value, {OPTIONS}) -> (Tensor, Tensor)",
)
def with_cache(
    query: Tensor, key: Tensor, value: Tensor, new_key: Tensor | None, new_value: Tensor | None,
    causal: bool, window_size_left: int, window_size_right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(result, log-sum-exp) for a cache of keys and values, which is written to."""
    return result_of(query, value), rows_of(query, 0)
