"""What a training step is: which work belongs to it, and which steps are alike.

Interpretation of a trace without a formula: nothing here knows what an operator costs.
"""

from torchtally.ledger.steps.course import Course, Period, TrainingStep, course_of
from torchtally.ledger.steps.generation import TokenGeneration, TokenPass
