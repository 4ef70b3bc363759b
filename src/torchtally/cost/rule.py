"""The table of rules: one function per operator, from a call to its cost.

A rule's file opens with the legend of its shape letters. Conventions that hold for all of them:

- a multiply and an add are two FLOPs; any other arithmetic on one element (an exp, a compare) is one;
- every input is read once and every result written once (`moved`), broadcast elements once;
- a result in storage that came in, with nothing written, is a view: free, whatever its name.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from torchtally.cost.cost import Cost
from torchtally.record import Call


class Kind(StrEnum):
    """What sort of work an operator is. Products, attention and convolutions are matmul work."""

    PRODUCT = "product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    LOSS = "loss"
    RECURRENT = "recurrent"
    FFT = "fft"
    SORTING = "sorting"
    INDEXING = "indexing"
    RANDOM = "random"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    VIEW = "view"
    METADATA = "metadata"
    UNCOUNTED = "uncounted"

    @property
    def is_matmul(self) -> bool:
        """Work that runs on tensor cores, and all that MFU's FLOPs are made of."""
        return self in (Kind.PRODUCT, Kind.ATTENTION, Kind.CONVOLUTION, Kind.RECURRENT)

    @property
    def is_free(self) -> bool:
        return self in (Kind.VIEW, Kind.METADATA)


Formula = Callable[[Call], Cost]


@dataclass(frozen=True, slots=True)
class Rule:
    kind: Kind
    formula: Formula


RULES: dict[str, Rule] = {}
"""Operator name ("aten.mm") to its rule. Filled by the imports in `cost/__init__.py`."""


def rule(*names: str, kind: Kind) -> Callable[[Formula], Formula]:
    """Register a formula for operators. Raises ValueError when one has a rule already."""

    def register(formula: Formula) -> Formula:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = Rule(kind, formula)
        return formula

    return register


def moved(call: Call, *, flops: int = 0, unread: Iterable[str] = ()) -> Cost:
    """`flops`, and each device input read once and each result written once.

    `unread` names arguments that are written without being read (`copy_`'s self).
    """
    skip = frozenset(unread)
    came_in = {spec.storage for spec in call.inputs}
    read = sum(s.bytes for s in call.inputs if s.is_on_device and s.argument not in skip)
    in_place = sum(s.bytes for s in call.inputs if s.is_on_device and s.is_written)
    fresh = sum(s.bytes for s in call.outputs if s.is_on_device and s.storage not in came_in)
    return Cost(flops=flops, bytes_read=read, bytes_written=in_place + fresh)


def cost_of(call: Call) -> tuple[Kind, Cost]:
    """The kind and cost of a call. An operator without a rule is UNCOUNTED, never silently zero."""
    if call.is_view:
        return Kind.VIEW, Cost()
    found = RULES.get(call.name)
    if found is None:
        return Kind.UNCOUNTED, Cost()
    return found.kind, found.formula(call)
