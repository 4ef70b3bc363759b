"""Models to train: a deep linear one to count by hand, and decoders from 1M to 70B parameters."""

from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.cruncher import Cruncher
from torchtally.train.models.linear import Embedding, Linear
from torchtally.train.models.loss import linear_cross_entropy
from torchtally.train.models.transformer import Transformer

__all__ = [
    "Cruncher",
    "Embedding",
    "Linear",
    "Transformer",
    "TransformerConfig",
    "linear_cross_entropy",
]
