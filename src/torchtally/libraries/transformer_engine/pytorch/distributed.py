"""transformer_engine.pytorch.distributed: what a tensor-parallel product sends, and when.

Column-parallel weights have a part of the outputs' features, row-parallel ones of the inputs'. The
sums of row-parallel products, and of column-parallel ones' gradients, are all-reduced; with
sequence parallelism tokens are gathered before a column-parallel product, and once more for the
gradient of its weight, and its sums are reduce-scattered (pytorch/module/linear.py).
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

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
        self, tp_group: Any = None, tp_size: int = 1, parallel_mode: str | None = None,
        sequence_parallel: bool = False,
    ) -> None:  # fmt: skip
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
        """Of a result's first dimension."""
        if not self.is_by_sequence or self.mode is None:
            return rows
        return rows * self.size if self.is_column else divide(rows, self.size)

    def check_group(self) -> None:
        assert self.group is not None, "TP group not initialized."

    def gather(self, x: Tensor) -> tuple[Tensor, Wait]:
        """(all ranks' rows, what waits for them)."""
        self.check_group()
        out = x.new_empty((x.shape[0] * self.size, *x.shape[1:]))
        work: Any = dist.all_gather_into_tensor(out, x.contiguous(), self.group, async_op=True)
        return out, work.wait

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


def now(answer: tuple[Tensor, Wait]) -> Tensor:
    tensor, wait = answer
    wait()
    return tensor
