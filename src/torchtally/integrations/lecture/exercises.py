"""All exercises by their numbers."""

from torchtally.integrations.lecture.scale import SCALE
from torchtally.integrations.lecture.steps import STEPS
from torchtally.integrations.lecture.tensors import TENSORS

EXERCISES = {exercise.number: exercise for exercise in (*TENSORS, *STEPS, *SCALE)}
"""In the order of the pages."""
