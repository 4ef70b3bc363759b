"""Predicted time of one operator on one chip."""

from torchtally.timing.roofline.kernel import Bound, Kernel
from torchtally.timing.roofline.roofline import Roofline
