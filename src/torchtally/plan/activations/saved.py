"""One tensor that autograd keeps from the forward to the backward pass."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from torchtally.plan.quantity import Quantity, total
from torchtally.units import Unit


class Region(StrEnum):
    """Region of a layer in which a tensor is: how tensor parallelism splits it.

    Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.
    """

    STREAM = "stream"
    """Of the residual stream's width, around norms and dropouts: split under sequence parallelism
    alone."""
    INNER = "inner"
    """Between the two matrices that are split by columns and by rows: always split."""
    WHOLE = "whole"
    """On every chip alike."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that is kept, and what for."""

    name: str
    elements: Quantity
    """Of one sequence's share on this chip, before tensor parallelism."""
    itemsize_bytes: int
    region: Region
    bytes: Quantity
    """On one chip."""
    why: str = ""
    """Which operator's backward reads it."""
    is_input: bool = False
    """It is what the layer was given: what full recomputation keeps anyway."""
    result_of: str = ""
    """The matrix whose product made it, by its name among weights; ATTENTION: its kernel."""

    def made_by(self, name: str) -> "Saved":
        """The same, as the result of this matrix, or of attention's kernel."""
        return self if name == self.result_of else replace(self, result_of=name)


ATTENTION = "attention"


def saved_bytes(name: str, tensors: Iterable[Saved], note: str = "") -> Quantity:
    """All of these together."""
    parts = {f"tensor_{n}": tensor.bytes for n, tensor in enumerate(tensors)}
    return total(name, Unit.BYTES, parts, note=note)
