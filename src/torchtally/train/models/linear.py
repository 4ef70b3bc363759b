"""Matrices and tables, and how they start: outputs of the same scale at every width.

Axes: `in` and `out` are features, `rows` entries of a table, `width` the features of one entry.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

CUT = 3.0
"""In standard deviations: nothing starts further from zero."""


@torch.no_grad()
def fill_normal(weight: Float[Tensor, "..."], std: float) -> None:
    """Fill with a normal distribution of this standard deviation, cut at three of them.

    The cut is at 3 * std, not at 3: with std below one, the latter would never cut. It leaves
    98.7 % of the standard deviation. A narrow dtype is drawn in float32 and rounded once, since a
    uniform number of bfloat16 has 8 bits and its normal a tail of a few values.
    """
    wide = weight if weight.dtype.itemsize >= 4 else torch.empty_like(weight, dtype=torch.float32)
    nn.init.trunc_normal_(wide, std=std, a=-CUT * std, b=CUT * std)
    if wide is not weight:
        weight.copy_(wide)


class Linear(nn.Linear):
    """x @ weight.T + bias, with weight (out, in) that starts as gain / sqrt(in) of a cut normal.

    A sum of `in` products of unit variance has variance `in`; the scale takes it back, so outputs
    start with a standard deviation near `gain` whatever the width. The bias starts at zero. It is
    torch's Linear in all but its start, so that what replaces torch's (fp8, adapters) finds it.
    """

    def __init__(
        self, in_features: int, out_features: int, *, has_bias: bool = False, gain: float = 1.0
    ) -> None:
        self.gain = gain
        super().__init__(in_features, out_features, bias=has_bias)

    def reset_parameters(self) -> None:
        fill_normal(self.weight, self.gain / math.sqrt(self.in_features))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return F.linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """A table of `rows` vectors, each of length near 1: entries start as 1 / sqrt(width).

    So a tied head, whose weight it is, starts as a `Linear` of the same shape would.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)

    def reset_parameters(self) -> None:
        fill_normal(self.weight, 1 / math.sqrt(self.embedding_dim))

    def forward(self, input: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        return F.embedding(input, self.weight)
