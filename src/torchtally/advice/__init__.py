"""What would make a run fit: changes worth trying, and what trying them showed."""

from torchtally.advice.changes import Change, candidates, combined
from torchtally.advice.results import Result, results_table

__all__ = ["Change", "Result", "candidates", "combined", "results_table"]
