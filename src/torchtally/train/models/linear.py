"""Linear layers and embeddings, initialised for outputs of the same scale at every width.

Axes: `in` and `out` are features, `rows` entries of a table, `width` the features of one entry.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

CUT = 3.0
"""Initial values are cut at this many standard deviations."""


@torch.no_grad()
def fill_normal(weight: Float[Tensor, "..."], std: float) -> None:
    """Fill from a normal distribution of this standard deviation, truncated at 3 * std.

    The truncation leaves 98.7 % of the standard deviation. Narrow dtypes are drawn in float32 and
    rounded once: a uniform bfloat16 has 8 bits, which leave few values in the normal's tails.
    """
    wide = weight if weight.dtype.itemsize >= 4 else torch.empty_like(weight, dtype=torch.float32)
    nn.init.trunc_normal_(wide, std=std, a=-CUT * std, b=CUT * std)
    if wide is not weight:
        weight.copy_(wide)


class Linear(nn.Linear):
    """torch's Linear, initialised with std gain / sqrt(in), or gain * std, and a zero bias.

    A sum of `in` products of unit variance has variance `in`, so outputs start with a standard
    deviation near `gain` at every width. As a subclass of torch's Linear it is found by what
    replaces linear layers (fp8, adapters).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        has_bias: bool = False,
        gain: float = 1.0,
        std: float | None = None,
    ) -> None:
        self.std = gain * (1 / math.sqrt(in_features) if std is None else std)
        super().__init__(in_features, out_features, bias=has_bias)

    def reset_parameters(self) -> None:
        fill_normal(self.weight, self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """`rows` vectors of length near 1: unless given, entries start with std 1 / sqrt(width).

    So a tied head starts like a `Linear` of the same shape.
    """

    def __init__(self, rows: int, width: int, std: float | None = None) -> None:
        self.std = 1 / math.sqrt(width) if std is None else std
        super().__init__(rows, width)

    def reset_parameters(self) -> None:
        fill_normal(self.weight, self.std)
