"""FLOPs and bytes of a call: exact, by published formula, one file per family of operators."""

from torchtally.cost import (  # each import registers its family's rules
    attention,
    communication,
    convolution,
    copies,
    elementwise,
    fft,
    indexing,
    interpolation,
    linear_algebra,
    losses,
    metadata,
    normalization,
    optimizers,
    products,
    randomness,
    recurrent,
    reductions,
    sorting,
)
from torchtally.cost.cost import Cost
from torchtally.cost.rule import RULES, Kind, cost_of

__all__ = [
    "RULES",
    "Cost",
    "Kind",
    "attention",
    "communication",
    "convolution",
    "copies",
    "cost_of",
    "elementwise",
    "fft",
    "indexing",
    "interpolation",
    "linear_algebra",
    "losses",
    "metadata",
    "normalization",
    "optimizers",
    "products",
    "randomness",
    "recurrent",
    "reductions",
    "sorting",
]
