"""Measurements of real devices, and what the time of an operator depends on. No torch."""

from torchtally.timing.calibration.calibration import Calibration, Issue
from torchtally.timing.calibration.features import Features, features
from torchtally.timing.calibration.sample import Sample
