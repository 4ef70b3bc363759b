"""Predicted time of one operator on one chip."""

from torchtally.roofline.kernel import Bound, Kernel
from torchtally.roofline.launches import launches
from torchtally.roofline.roofline import Roofline

__all__ = ["Bound", "Kernel", "Roofline", "launches"]
