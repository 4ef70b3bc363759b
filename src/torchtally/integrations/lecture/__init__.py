"""The lecture's exercises, which check themselves: on this machine alone, and nothing is recorded.

from torchtally.integrations.lecture import check

exercise            a question, its answer, the common mistakes and what each of them means
exercises           all of them: three to a page, the third on the student's own script
check               right, wrong with a hint, or not answered yet
own_script          figures of a trace that answers are compared with
"""

from torchtally.integrations.lecture.check import check
from torchtally.integrations.lecture.exercise import Exercise
from torchtally.integrations.lecture.exercises import EXERCISES
