"""FLOPs and bytes of a call: exact, by published formula, one file per family of operators."""

from torchtally.cost.cost import Cost
from torchtally.cost.rule import RULES, Kind, cost_of

__all__ = ["RULES", "Cost", "Kind", "cost_of"]
