"""What formats would lose of a tensor's numbers, counted element by element.

    statistics = tensor_statistics("w", "float32", array.shape, lambda: [array], formats)

A tensor comes as a stream of parts that can be read twice: the largest magnitude sets the scales.
Every number is counted, none is sampled.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchtally.number_formats.arrays import (
    Floats,
    RoundedArray,
    float_layout,
    power_to_largest,
    round_blocks,
    round_to_layout,
)
from torchtally.number_formats.catalogue import NumberFormat
from torchtally.number_formats.losses import FormatLoss, ScaleKind, TensorStatistics, ways

Parts = Callable[[], Iterable[NDArray[np.generic]]]
"""The parts of a tensor, in order: arrays of rows, none of which cuts a block."""


@dataclass(slots=True)
class _Magnitudes:
    """What one pass finds without a format."""

    elements: int = 0
    zeros: int = 0
    nonfinite: int = 0
    largest: float = 0.0
    smallest: float = float("inf")
    exponents: Counter[int] = field(default_factory=Counter)
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Floats) -> None:
        magnitudes = np.abs(values)
        is_number = np.isfinite(magnitudes) & (magnitudes > 0)
        numbers = magnitudes[is_number]
        self.elements += values.size
        self.zeros += int(np.count_nonzero(values == 0))
        self.nonfinite += int(values.size - np.count_nonzero(np.isfinite(values)))
        if not numbers.size:
            return
        self.largest = max(self.largest, float(numbers.max()))
        self.smallest = min(self.smallest, float(numbers.min()))
        with np.errstate(over="ignore"):  # of float64 near its end
            self.total += float(values[is_number].sum())
            self.squares += float(np.square(numbers).sum())
        exponents = np.frexp(numbers)[1] - 1
        least = int(exponents.min())
        for place, count in enumerate(np.bincount(exponents - least).tolist()):
            if count:
                self.exponents[least + place] += count


def tensor_statistics(
    name: str, dtype: str, parts: Parts, formats: Sequence[NumberFormat]
) -> TensorStatistics:
    """Statistics of one tensor, in two passes over its parts.

    Raises UsageError for formats of integers.
    """
    for row in formats:
        float_layout(row)
    magnitudes = _Magnitudes()
    for part in parts():
        magnitudes.add(_rows(part))
    losses: list[FormatLoss] = []
    if magnitudes.elements > magnitudes.zeros + magnitudes.nonfinite:
        losses = _losses(parts, formats, magnitudes)
    else:
        losses = [FormatLoss(row.name, scale) for row, scale in ways(formats)]
    return TensorStatistics(
        name=name,
        dtype=dtype,
        elements=magnitudes.elements,
        zeros=magnitudes.zeros,
        nonfinite=magnitudes.nonfinite,
        largest=magnitudes.largest,
        smallest=magnitudes.smallest if magnitudes.exponents else 0.0,
        exponents=dict(sorted(magnitudes.exponents.items())),
        losses=tuple(losses),
        total=magnitudes.total,
        squares=magnitudes.squares,
    )


def _losses(
    parts: Parts, formats: Sequence[NumberFormat], magnitudes: _Magnitudes
) -> list[FormatLoss]:
    totals = [FormatLoss(row.name, scale) for row, scale in ways(formats)]
    tensor_largest = float("inf") if magnitudes.nonfinite else magnitudes.largest
    for part in parts():
        values = _rows(part)
        is_number = np.isfinite(values) & (values != 0)
        finite = values if is_number.all() else np.where(is_number, values, 0.0)
        for place, (row, scale) in enumerate(ways(formats)):
            layout = float_layout(row)
            if row.blocks is not None:
                rounded = round_blocks(values, layout, row.blocks, tensor_largest)
                original = values
            else:
                power = 0
                if scale is ScaleKind.TENSOR:
                    power = power_to_largest(magnitudes.largest, layout)
                original = np.ldexp(finite, power) if power else finite
                rounded = round_to_layout(original, layout)
            totals[place] += _loss(row.name, scale, original, rounded, is_number)
    return totals


def _loss(
    format: str,
    scale: ScaleKind,
    values: Floats,
    rounded: RoundedArray,
    is_number: NDArray[np.bool_],
) -> FormatLoss:
    overflows = rounded.has_overflowed & is_number
    underflows = (rounded.values == 0) & is_number & ~overflows
    changed = (rounded.values != values) & is_number & ~overflows & ~underflows
    return FormatLoss(
        format,
        scale,
        int(np.count_nonzero(underflows)),
        int(np.count_nonzero(overflows)),
        int(np.count_nonzero(changed)),
        int(np.count_nonzero(rounded.is_subnormal & is_number)),
    )


def _rows(part: NDArray[np.generic]) -> Floats:
    """The numbers as float64, in rows."""
    values = part.astype(np.float64)
    return values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
