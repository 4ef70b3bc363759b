"""Predicted time of one operator on one chip."""

from torchtally.roofline.kernel import Bound, Kernel

__all__ = ["Bound", "Kernel"]
