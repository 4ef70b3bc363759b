"""transformer_engine.pytorch.permutation: tokens to rows by expert, and back; the map of rows is
kept, and what is multiplied by probabilities where they merge rows.
"""

from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators import mixtures  # noqa: F401 (defines the operators)


class Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inp: Tensor, routing_map: Tensor, rows: int, probs: Tensor | None) -> Any:
        operators = torch.ops.transformer_engine
        row_id_map = operators.row_id_map(routing_map)
        out, permuted_probs = operators.permute(inp, row_id_map, probs, rows)
        ctx.save_for_backward(row_id_map)
        ctx.mark_non_differentiable(row_id_map)
        ctx.has_probs = probs is not None
        return out, row_id_map, permuted_probs if ctx.has_probs else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any, grad_probs: Tensor | None) -> Any:
        (row_id_map,) = ctx.saved_tensors
        of_probs = grad_probs if ctx.has_probs else None
        out, probs = torch.ops.transformer_engine.unpermute(grad, row_id_map, None, of_probs)
        return out, None, None, probs if ctx.has_probs else None


class Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inp: Tensor, row_id_map: Tensor, merging_probs: Tensor | None) -> Tensor:
        out, _ = torch.ops.transformer_engine.unpermute(inp, row_id_map, merging_probs, None)
        ctx.save_for_backward(None if merging_probs is None else inp, row_id_map, merging_probs)
        ctx.rows = inp.shape[0]
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inp, row_id_map, merging_probs = ctx.saved_tensors
        operators = torch.ops.transformer_engine
        if merging_probs is None:
            out, _ = operators.permute(grad, row_id_map, None, ctx.rows)
            return out, None, None
        out, grad_probs = operators.unpermute_backward(grad, inp, row_id_map, merging_probs)
        return out, None, grad_probs


class ChunkSort(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, split_sizes: Tensor, sorted_index: Tensor, probs: Tensor | None
    ) -> Any:
        operators = torch.ops.transformer_engine
        row_id_map = operators.chunk_sort_map(split_sizes, sorted_index, inp.shape[0])
        out, sorted_probs = operators.sort_chunks(inp, row_id_map, probs)
        ctx.save_for_backward(row_id_map)
        ctx.has_probs = probs is not None
        return out, sorted_probs if ctx.has_probs else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_probs: Tensor | None) -> Any:
        (row_id_map,) = ctx.saved_tensors
        of_probs = grad_probs if ctx.has_probs else None
        out, probs = torch.ops.transformer_engine.sort_chunks(grad, row_id_map, of_probs)
        return out, None, None, probs if ctx.has_probs else None


def check(map_type: str) -> None:
    if map_type != "mask":
        raise NotImplementedError(
            f"tally does not know map_type={map_type!r} of Transformer Engine's permutations"
        )


def moe_permute(
    inp: Tensor,
    routing_map: Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> tuple[Tensor, Tensor]:
    check(map_type)
    out, row_id_map, _ = Permute.apply(inp, routing_map, num_out_tokens, None)  # type: ignore[no-untyped-call]
    return out, row_id_map


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    out, row_id_map, permuted_probs = Permute.apply(inp, routing_map, num_out_tokens, probs)  # type: ignore[no-untyped-call]
    return out, permuted_probs, row_id_map


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: Any = None,
    map_type: str = "mask",
    probs: Tensor | None = None,
) -> Tensor:
    check(map_type)
    merging_probs = probs if merging_probs is None else merging_probs
    out: Tensor = Unpermute.apply(inp, row_id_map, merging_probs)  # type: ignore[no-untyped-call]
    return out


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    out: Tensor = ChunkSort.apply(inp, split_sizes, sorted_index, None)[0]  # type: ignore[no-untyped-call]
    return out


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_index: Tensor
) -> tuple[Tensor, Tensor]:
    out: tuple[Tensor, Tensor] = ChunkSort.apply(inp, split_sizes, sorted_index, probs)  # type: ignore[no-untyped-call]
    return out
