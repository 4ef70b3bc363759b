"""Transformer Engine's kernels of mixtures of experts (pytorch/permutation.py).

T: tokens.  E: experts.  R: rows, a token's for each of its experts.
"""

import torch
from torch import Tensor

from torchtally.libraries.operators.registry import define


@define("transformer_engine", "row_id_map(Tensor routing_map) -> Tensor")
def row_id_map(routing_map: Tensor) -> Tensor:
    """(T, 2 E + 1): of each token its rows, their experts, and how many there are."""
    T, E = routing_map.shape
    return routing_map.new_empty((T, 2 * E + 1), dtype=torch.int32)


@define(
    "transformer_engine",
    "permute(Tensor x, Tensor row_id_map, Tensor? probs, SymInt rows) -> (Tensor, Tensor)",
)
def permute(
    x: Tensor, row_id_map: Tensor, probs: Tensor | None, rows: int
) -> tuple[Tensor, Tensor]:
    """(rows by expert, their probabilities)."""
    permuted_probs = x.new_empty(0) if probs is None else probs.new_empty(rows)
    return x.new_empty((rows, x.shape[1])), permuted_probs


@define(
    "transformer_engine",
    "unpermute(Tensor x, Tensor row_id_map, Tensor? merging_probs, Tensor? permuted_probs) "
    "-> (Tensor, Tensor)",
)
def unpermute(
    x: Tensor, row_id_map: Tensor, merging_probs: Tensor | None, permuted_probs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(sum of a token's rows, probabilities by token and expert)."""
    T, width = row_id_map.shape
    probs = x.new_empty(0) if permuted_probs is None else permuted_probs.new_empty((T, width // 2))
    return x.new_empty((T, x.shape[1])), probs


@define(
    "transformer_engine",
    "unpermute_backward(Tensor grad, Tensor x, Tensor row_id_map, Tensor merging_probs) "
    "-> (Tensor, Tensor)",
)
def unpermute_backward(
    grad: Tensor, x: Tensor, row_id_map: Tensor, merging_probs: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(merging_probs)


@define(
    "transformer_engine",
    "chunk_sort_map(Tensor split_sizes, Tensor sorted_index, SymInt rows) -> Tensor",
)
def chunk_sort_map(split_sizes: Tensor, sorted_index: Tensor, rows: int) -> Tensor:
    return split_sizes.new_empty(rows, dtype=torch.int32)


@define(
    "transformer_engine",
    "sort_chunks(Tensor x, Tensor row_id_map, Tensor? probs) -> (Tensor, Tensor)",
)
def sort_chunks(x: Tensor, row_id_map: Tensor, probs: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0) if probs is None else probs.new_empty(probs.shape)


@define("transformer_engine", "pad_rows(Tensor x, SymInt rows) -> Tensor")
def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Rows of groups, each padded to a multiple, or without the padding."""
    return x.new_empty((rows, x.shape[1]))
