"""A tensor in a file: its name, and its numbers part by part."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
PART_ELEMENTS = 1 << 18
"""2 MB as float64: a part and what is made of it stay within a cache. A multiple of all blocks."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor whose numbers are read when they are asked for."""

    name: str
    dtype: str
    """As torch calls it, or the file's own name of its blocks ("Q4_K")."""
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[Array]]
    """Its numbers in order, as arrays of rows. May be asked for several times."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


def spans(shape: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first, last + 1, width) of the elements of each part, in rows of this width.

    Rows stay whole; one that is longer than a part is cut between blocks.
    """
    elements, width = prod(shape), shape[-1] if shape else 1
    if not elements:
        return
    if width >= PART_ELEMENTS:
        for row in range(0, elements, width):
            for first in range(row, row + width, PART_ELEMENTS):
                last = min(first + PART_ELEMENTS, row + width)
                yield first, last, last - first
        return
    step = PART_ELEMENTS // width * width
    for first in range(0, elements, step):
        yield first, min(first + step, elements), width
