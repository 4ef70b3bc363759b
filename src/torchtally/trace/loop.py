"""What the source of the script's training loop says of the whole run: length and intervals."""

from collections.abc import Mapping

import msgspec

from torchtally.trace.record import Count, Record

LOOP = "loop"
"""Among the facts of a trace."""


class Recurring(Record, frozen=True):
    """A block of the loop that runs in one of so many steps: an evaluation, a save, a log line."""

    file: str
    first_line: Count
    last_line: Count
    text: str
    """The condition, as it is written: "iter_num % eval_interval == 0"."""
    every: Count
    saves: bool
    """It calls a function named `save`, or like it."""


class TrainingLoop(Record, frozen=True):
    """The loops around the optimizer's step, with the values that their bounds had."""

    steps: Count | None
    """Of the whole training; None where no bound is known."""
    text: str
    """The loops' heads, outermost first."""
    recurring: tuple[Recurring, ...]

    def text_of_facts(self) -> str:
        """The text that the trace keeps."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_facts(cls, facts: Mapping[str, str]) -> "TrainingLoop | None":
        """Loop that the facts of a trace have; None where there is none."""
        text = facts.get(LOOP)
        return None if text is None else msgspec.json.decode(text, type=cls)
