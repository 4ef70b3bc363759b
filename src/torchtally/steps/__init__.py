"""What a training step is: which work belongs to it, and which steps are alike.

Interpretation of a trace without a formula: nothing here knows what an operator costs.
"""

from torchtally.steps.course import Course, Period, TrainingStep, course_of

__all__ = ["Course", "Period", "TrainingStep", "course_of"]
