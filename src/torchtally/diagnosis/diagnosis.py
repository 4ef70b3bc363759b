"""What a diagnosis is."""

from dataclasses import dataclass

from torchtally.ledger import Line
from torchtally.table import Prose


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause of what a run costs, and what to change."""

    rule: str
    cause: Prose
    """A sentence with its figure."""
    remedy: str
    """A sentence that says what to change."""
    line: Line | None
    """Of the user's code, where there is one."""
    cost_bytes: int
    """HeldStorage at the peak for this cause, or by every step more."""
    share: float
    """Of the peak."""
