"""Tensor parallelism: what a tensor-parallel product sends, and when.

Column-parallel weights have a part of the outputs' features, row-parallel ones of the inputs'. The
sums of row-parallel products, and of column-parallel ones' gradients, are all-reduced; with
sequence parallelism tokens are gathered before a column-parallel product, and once more for the
gradient of its weight, and its sums are reduce-scattered (pytorch/module/linear.py).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally.libraries.operators.transformer_engine import MX_BLOCK, scales_of

from ..common.recipe import Recipe
from .quantization import Operand

Wait = Callable[[], object]
MODES = ("column", "row", None)


def world_size(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def divide(number: int, parts: int) -> int:
    assert number % parts == 0, f"{number} is not divisible by {parts}"
    return number // parts


class TensorParallel:
    """How one product's weight is shared among the ranks of a group."""

    def __init__(
        self,
        tp_group: Any = None,
        tp_size: int = 1,
        parallel_mode: str | None = None,
        sequence_parallel: bool = False,
    ) -> None:
        if parallel_mode not in MODES:
            raise AssertionError(f"parallel_mode {parallel_mode} not supported")
        self.group = tp_group
        self.size = tp_size if tp_group is None else world_size(tp_group)
        self.mode = parallel_mode if self.size > 1 else None
        self.adds_bias_after = parallel_mode == "row"
        self.is_by_sequence = self.size > 1 and sequence_parallel

    @property
    def is_column(self) -> bool:
        return self.mode == "column"

    @property
    def is_row(self) -> bool:
        return self.mode == "row"

    @property
    def gathers_inputs(self) -> bool:
        return self.is_column and self.is_by_sequence

    @property
    def gathers_gradients(self) -> bool:
        return self.is_row and self.is_by_sequence

    def rows_after(self, rows: int) -> int:
        """Rows of a result's first dimension."""
        if not self.is_by_sequence or self.mode is None:
            return rows
        return rows * self.size if self.is_column else divide(rows, self.size)

    def check_group(self) -> None:
        assert self.group is not None, "TP group not initialized."

    def gather(self, operand: Operand, recipe: Recipe | None) -> tuple[Operand, Wait]:
        """(all ranks' rows, what waits for them): of a recipe with a scale for the whole tensor the
        copy over rows alone, of MXFP8 each copy that is there and its scales, in one group.
        """
        self.check_group()
        pairs: list[tuple[Tensor, Tensor]] = []

        def whole(data: Tensor, scales: Tensor | None, per_scale: int) -> tuple[Tensor, Any]:
            if not data.numel():
                return data, scales
            out = data.new_empty((data.shape[0] * self.size, *data.shape[1:]))
            if scales is not None and recipe is not None and recipe.mxfp8():
                scales = self.whole_scales(
                    scales, data.shape[0] // per_scale, out, per_scale, pairs
                )
            pairs.append((out, data))
            return out, scales

        rows = whole(operand.rows, operand.row_scales, 1)
        is_shared = recipe is None or recipe.float8_per_tensor_scaling()
        columns = rows if is_shared else whole(operand.columns, operand.column_scales, MX_BLOCK)
        sent = [(as_bytes(out), as_bytes(data.contiguous())) for out, data in pairs]
        if len(sent) == 1:
            work: Any = dist.all_gather_into_tensor(*sent[0], self.group, async_op=True)
        else:
            outs, inputs = (list(each) for each in zip(*sent, strict=True))
            work = self.group.allgather_into_tensor_coalesced(outs, inputs)
        return Operand(*rows, *columns), work.wait

    def whole_scales(
        self,
        scales: Tensor,
        used: int,
        data: Tensor,
        per_scale: int,
        pairs: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Scales as cuBLAS reads them; what is sent is without the padding."""
        M, K = data.shape
        shape = scales_of("mxfp8", M, K)[1] if per_scale == 1 else scales_of("mxfp8", K, M)[1][::-1]
        out = scales.new_empty(shape)
        pairs.append((out[: used * self.size], scales[:used]))
        return out

    def agree_on_scale(self, x: Tensor) -> None:
        """Agrees on a scale by the largest value of all ranks'."""
        self.check_group()
        largest = x.new_empty((1,), dtype=torch.float32)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self.group)

    def reduce(self, x: Tensor) -> tuple[Tensor, Wait]:
        """(the sum of all ranks', or this rank's rows of it, what waits for it)."""
        self.check_group()
        x = x.contiguous()
        if not self.is_by_sequence:
            work: Any = dist.all_reduce(x, group=self.group, async_op=True)
            return x, work.wait
        out = x.new_empty((divide(x.shape[0], self.size), *x.shape[1:]))
        work = dist.reduce_scatter_tensor(out, x, group=self.group, async_op=True)
        return out, work.wait


ALONE = TensorParallel()


def as_bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.element_size() == 1 else x


def now(answer: tuple[Any, Wait]) -> Any:
    result, wait = answer
    wait()
    return result
