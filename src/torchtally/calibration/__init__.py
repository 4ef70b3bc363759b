"""Measurements of real devices, and what the time of an operator depends on. No torch."""

from torchtally.calibration.calibration import Calibration, Issue
from torchtally.calibration.features import Features, features
from torchtally.calibration.sample import Sample

__all__ = ["Calibration", "Features", "Issue", "Sample", "features"]
