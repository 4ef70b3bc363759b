"""apex: fused optimizers and norms."""

from . import normalization, optimizers

__all__ = ["normalization", "optimizers"]
