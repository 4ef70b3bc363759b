"""Memory that an operator's CUDA implementation takes besides its results, and gives back."""

from collections.abc import Callable

from torchtally.hardware import Chip
from torchtally.record import Call
from torchtally.workspace.kind import SCRATCH, Workspace

Rule = Callable[[Call, Chip], tuple[int, ...]]
RULES: dict[str, Rule] = {}


def has_scratch(operator: str) -> bool:
    return operator in RULES


def scratch(call: Call, chip: Chip) -> tuple[Workspace, ...]:
    """Everything that one call takes and gives back, in the order it is taken."""
    rule = RULES.get(call.name)
    sizes = rule(call, chip) if rule is not None else ()
    return tuple(Workspace(SCRATCH, size) for size in sizes)
