"""Causes behind a run's figures: at most five sentences, each with its line and what to do.

A rule is a function of a ledger in a file of its own:

    @rule("growth")
    def growth(ledger: Ledger) -> Iterator[Diagnosis]: ...

Every file of this folder is imported with the package, so a new rule is a new file. A rule that
finds nothing yields nothing: a run without faults has no diagnoses.
"""

from importlib import import_module
from pkgutil import iter_modules

from torchtally.diagnosis.rule import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
