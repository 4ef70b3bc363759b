"""What a diagnosis is, and the rules by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchtally.ledger import Ledger, Line
from torchtally.table import Prose

MOST = 5
"""Diagnoses of a run: those that cost most."""
LEAST_SHARE = 0.05
"""Of the peak: what costs less is not worth a sentence."""


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
    """Held at the peak for this cause, or by every step more."""
    share: float
    """Of the peak."""


Find = Callable[[Ledger], Iterator[Diagnosis]]

_rules: dict[str, Find] = {}


def rule(name: str) -> Callable[[Find], Find]:
    """Register a function of a ledger as a rule. Its name must be new."""

    def register(find: Find) -> Find:
        assert name not in _rules, name
        _rules[name] = find
        return find

    return register


def diagnose(ledger: Ledger) -> tuple[Diagnosis, ...]:
    """The causes worth a sentence, the dearest first; () of a run whose memory is not known."""
    if not ledger.knows_memory or not ledger.memory.peak_bytes or not ledger.entries:
        return ()
    found = [each for name in sorted(_rules) for each in _rules[name](ledger)]
    return tuple(sorted(found, key=lambda each: -each.share)[:MOST])
