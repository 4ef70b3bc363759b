"""The answer to a question: one line, its figures and tables, its assumptions and unknowns."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchtally.plan.quantity import Quantity
from torchtally.table import Table
from torchtally.table.shown import Shown

Part = str | Quantity
"""Of a sentence: text, or a number that a renderer formats in its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Shown):
    """The answer to one question. Immutable; `figures` carry the whole working."""

    question: str
    """Stable, for programs: "training-time"."""
    headline: tuple[Part, ...]
    """The answer in one sentence."""
    figures: tuple[Quantity, ...] = ()
    """The most important first."""
    tables: tuple[Table, ...] = ()
    assumptions: tuple[str, ...] = ()
    """With the option that changes each. Empty strings are skipped."""
    unknown: tuple[str, ...] = ()
    """What is not counted, and the option that would count it."""
    next: tuple[str, ...] = ()
    """Commands to run next."""
    config: str = ""
    """Of torchtitan, for the layout of the answer; empty where it was not asked for."""

    def __repr__(self) -> str:
        return f"<Answer to {self.question!r}: {len(self.figures)} figures>"

    @property
    def working(self) -> tuple[Quantity, ...]:
        """Every step of the arithmetic behind the figures, each once, terms before results."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[Quantity]:
        shown: set[Quantity] = set()
        in_headline = [quantity for quantity in self.headline if isinstance(quantity, Quantity)]
        for figure in (*in_headline, *self.figures):
            for step in figure.working():
                if step not in shown:
                    shown.add(step)
                    yield step
