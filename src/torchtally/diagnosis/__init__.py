"""Causes behind a run's figures: at most five sentences, each with its line and what to do.

A rule is a function of a run's peak, and of the ledger behind it, in a file of its own:

    @rule("growth")
    def growth(peak: MemoryPeak) -> Iterator[Diagnosis]: ...

Every file of this folder is imported with the package, so a new rule is a new file. A rule that
finds nothing yields nothing: a run without faults has no diagnoses.
"""

from importlib import import_module
from pkgutil import iter_modules

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.rule import diagnose

__all__ = ["Diagnosis", "diagnose"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
