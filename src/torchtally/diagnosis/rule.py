"""The rules by name, and what all of them find."""

from collections.abc import Callable, Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.ledger import Ledger

MOST = 5
"""Diagnoses of a run: those that cost most."""

Find = Callable[[MemoryPeak], Iterator[Diagnosis]]

_rules: dict[str, Find] = {}


def rule(name: str) -> Callable[[Find], Find]:
    """Register a function of a run's peak as a rule. Its name must be new."""

    def register(find: Find) -> Find:
        assert name not in _rules, name
        _rules[name] = find
        return find

    return register


def diagnose(ledger: Ledger) -> tuple[Diagnosis, ...]:
    """Find the causes worth a sentence, the dearest first; () where memory is not known."""
    if not ledger.knows_memory or not ledger.memory.peak_bytes or not ledger.entries:
        return ()
    peak = MemoryPeak(ledger)
    found = [each for name in sorted(_rules) for each in _rules[name](peak)]
    return tuple(sorted(found, key=lambda each: -each.share)[:MOST])
