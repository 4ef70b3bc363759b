"""What formats would lose of tensors' numbers: counts, and their sums. `statistics` counts them.

Shares are of numbers that are finite and not zero: zeros are held by every format, and inf and NaN
were lost before.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torchtally.number_formats.catalogue import NumberFormat


class ScaleKind(StrEnum):
    """What numbers are multiplied by before they are rounded."""

    NONE = "none"
    TENSOR = "tensor"
    """The largest power of two with which the tensor's largest number is in the format."""
    BLOCK = "block"
    """The format's own."""


@dataclass(frozen=True, slots=True)
class FormatLoss:
    """What became of numbers in a format, as counts. The first three exclude each other."""

    format: str
    scale: ScaleKind
    underflows: int = 0
    """Became zero."""
    overflows: int = 0
    """Became inf, NaN or the largest number."""
    rounded: int = 0
    """Became another number: bits were lost."""
    subnormals: int = 0
    """Are held with fewer digits than a normal number has, exactly or rounded."""

    def __add__(self, other: "FormatLoss") -> "FormatLoss":
        assert (self.format, self.scale) == (other.format, other.scale)
        return FormatLoss(
            self.format,
            self.scale,
            self.underflows + other.underflows,
            self.overflows + other.overflows,
            self.rounded + other.rounded,
            self.subnormals + other.subnormals,
        )


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """A tensor's numbers: how large they are, and what formats lose of them."""

    name: str
    dtype: str
    elements: int
    zeros: int
    nonfinite: int
    """inf and NaN."""
    largest: float
    """Magnitude of the largest finite number; 0 where there is none."""
    smallest: float
    """Of the smallest one that is not zero; 0 where there is none."""
    exponents: Mapping[int, int] = field(default_factory=dict)
    """Numbers by their exponent, smallest first: from 2**exponent to below twice that."""
    losses: tuple[FormatLoss, ...] = ()
    total: float = 0.0
    """Sum of the finite numbers."""
    squares: float = 0.0
    """Sum of their squares."""

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the finite numbers, zeros among them; of one it is 0."""
        count = self.elements - self.nonfinite
        if not count:
            return 0.0
        mean = self.total / count
        return math.sqrt(max(self.squares / count - mean * mean, 0.0))

    @property
    def numbers(self) -> int:
        """Finite ones that are not zero."""
        return self.elements - self.zeros - self.nonfinite

    def loss(self, format: str, scale: ScaleKind) -> FormatLoss:
        return next(each for each in self.losses if (each.format, each.scale) == (format, scale))

    def worst(self, formats: "Sequence[NumberFormat]") -> FormatLoss:
        """What loses the largest share of the numbers, of formats as they are used."""
        losses = [self.loss(row.name, usual_scale(row)) for row in formats]
        return max(losses, key=lambda each: (self.lost(each), each.rounded))

    def lost(self, loss: FormatLoss) -> float:
        """Share of the numbers that under- or overflow."""
        return (loss.underflows + loss.overflows) / self.numbers if self.numbers else 0.0


SCALES = {True: (ScaleKind.NONE, ScaleKind.TENSOR), False: (ScaleKind.BLOCK,)}
"""By whether numbers stand for themselves."""


def ways(formats: Sequence[NumberFormat]) -> list[tuple[NumberFormat, ScaleKind]]:
    """Each format as it is counted: with its blocks' scales, or without and with a tensor's."""
    return [(row, scale) for row in formats for scale in SCALES[row.blocks is None]]


def usual_scale(format: NumberFormat) -> ScaleKind:
    """How a format is used: with its blocks' scales, of 8 bits and fewer with a tensor's, of more
    with none.
    """
    if format.blocks is not None:
        return ScaleKind.BLOCK
    return ScaleKind.TENSOR if format.element_bits <= 8 else ScaleKind.NONE


def together(
    name: str, tensors: Sequence[TensorStatistics], formats: Sequence[NumberFormat]
) -> TensorStatistics:
    """All of them as if they were one, each with the scales that it had."""
    exponents: Counter[int] = Counter()
    losses = [FormatLoss(row.name, scale) for row, scale in ways(formats)]
    for tensor in tensors:
        exponents.update(tensor.exponents)
        losses = [total + each for total, each in zip(losses, tensor.losses, strict=True)]
    numbers = [tensor for tensor in tensors if tensor.numbers]
    return TensorStatistics(
        name=name,
        dtype=", ".join(dict.fromkeys(tensor.dtype for tensor in tensors)),
        elements=sum(tensor.elements for tensor in tensors),
        zeros=sum(tensor.zeros for tensor in tensors),
        nonfinite=sum(tensor.nonfinite for tensor in tensors),
        largest=max((tensor.largest for tensor in numbers), default=0.0),
        smallest=min((tensor.smallest for tensor in numbers), default=0.0),
        exponents=dict(sorted(exponents.items())),
        losses=tuple(losses),
        total=sum(tensor.total for tensor in tensors),
        squares=sum(tensor.squares for tensor in tensors),
    )
