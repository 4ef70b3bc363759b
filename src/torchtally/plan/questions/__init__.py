"""Questions that people ask before they train, each answered by closed forms with its working.

A question is a function `Request -> Answer` in a file of its own. An answer is finished: numbers
with units and working, tables, assumptions and unknowns. A renderer prints it.
"""

from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.request import Request, Subject, counted_subject, subject
