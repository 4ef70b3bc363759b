"""Groups padded to as many rows as are multiplied in float8."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.libraries.operators import mixtures  # noqa: F401 (defines the operators)

from ..quantization import Precision


class PaddedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int) -> Tensor:
        ctx.rows = x.shape[0]
        out: Tensor = torch.ops.transformer_engine.pad_rows(x, rows)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return torch.ops.transformer_engine.pad_rows(grad.contiguous(), ctx.rows), None


class Fp8Padding(nn.Module):
    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def padded(self, m_splits: Sequence[int]) -> list[int]:
        """Rows of each group: by default a multiple of 32 in MXFP8, of 16 in other recipes."""
        assert len(m_splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        if self.align_size is None:
            recipe = Precision.recipe
            self.align_size = 32 if recipe is not None and recipe.mxfp8() else 16
        return [-(-rows // self.align_size) * self.align_size for rows in m_splits]

    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> Any:
        padded = self.padded(m_splits)
        if list(m_splits) == padded:
            return inp, m_splits
        return PaddedRows.apply(inp, sum(padded)), padded  # type: ignore[no-untyped-call]


class Fp8Unpadding(Fp8Padding):
    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> Any:
        if list(m_splits) == self.padded(m_splits):
            return inp
        return PaddedRows.apply(inp, sum(m_splits))  # type: ignore[no-untyped-call]
