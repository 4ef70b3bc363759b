"""A tensor as a window on a storage: element [i, j] lies at offset + i * stride + j * stride.

Offsets, strides and places are in elements, not in bytes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product


@dataclass(frozen=True, slots=True)
class StridedTensor:
    """What is known of a strided tensor without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    element_bytes: int
    storage: int
    """Its number, in the order of their making: tensors with the same one share memory."""
    storage_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of its elements, each counted as often as it is in the tensor."""
        return self.elements * self.element_bytes

    @property
    def storage_elements(self) -> int:
        return self.storage_bytes // self.element_bytes

    @property
    def contiguous_strides(self) -> tuple[int, ...]:
        """Those that a tensor of this shape would have if its elements lay one after the other."""
        return tuple(math.prod(self.shape[place + 1 :]) for place in range(len(self.shape)))

    @property
    def is_contiguous(self) -> bool:
        """Whether it is contiguous as torch has it: a dimension of one element may have any
        stride.
        """
        return not self.elements or all(
            stride == dense
            for size, stride, dense in zip(
                self.shape, self.strides, self.contiguous_strides, strict=True
            )
            if size > 1
        )

    @property
    def repeats(self) -> bool:
        """Elements of the storage are several elements of the tensor, as by expand."""
        return any(
            size > 1 and not stride for size, stride in zip(self.shape, self.strides, strict=True)
        )

    @property
    def storage_elements_used(self) -> int | None:
        """How many elements of the storage it has. None where the strides overlap in other ways."""
        strides = sorted(
            (stride, size)
            for size, stride in zip(self.shape, self.strides, strict=True)
            if size > 1 and stride
        )
        reach, used = 0, 1
        for stride, size in strides:
            if stride <= reach:
                return None
            reach += stride * (size - 1)
            used *= size
        return used if self.elements else 0

    def place(self, index: Sequence[int]) -> int:
        """Offset in the storage of the element of this index."""
        steps = zip(index, self.strides, strict=True)
        return self.offset + sum(number * stride for number, stride in steps)

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Indices of all elements, the last dimension fastest."""
        return product(*map(range, self.shape))

    @property
    def letters(self) -> tuple[str, ...]:
        """One for each dimension: i, j, k."""
        if len(self.shape) <= len(LETTERS):
            return tuple(LETTERS[: len(self.shape)])
        return tuple(f"i{place}" for place in range(len(self.shape)))

    @property
    def formula(self) -> str:
        """Formula of the offset of element [i, j]: "1 + i + 4 j". Dimensions of one element are
        left out.
        """
        terms = [
            letter if stride == 1 else f"{stride} {letter}"
            for letter, size, stride in zip(self.letters, self.shape, self.strides, strict=True)
            if size != 1 and stride
        ]
        if self.offset or not terms:
            terms.insert(0, str(self.offset))
        return " + ".join(terms)


LETTERS = "ijklmnop"


class StepOrigin(StrEnum):
    """Origin of a tensor's memory."""

    NEW = "new"
    """A result that was computed or made."""
    COPY = "copy"
    """The values of another tensor, in memory of their own."""
    VIEW = "view"
    """The memory of another tensor, seen otherwise."""
    ITSELF = "itself"
    """The same tensor, because there was nothing to do."""
    IN_PLACE = "in place"
    """The same tensor, with other values."""


@dataclass(frozen=True, slots=True)
class ExpressionStep:
    """A part of an expression that gave a tensor."""

    code: str
    """What this step does: ".transpose(0, 1)"."""
    expression: str
    """All that it stands for, as it was written."""
    tensor: StridedTensor
    origin: StepOrigin


@dataclass(frozen=True, slots=True)
class EvaluatedExpression:
    """An expression, step by step, and the tensor that it gave."""

    expression: str
    steps: tuple[ExpressionStep, ...]
    """In the order of their evaluation. The last one is the result."""
    values: tuple[float | str, ...] | None
    """Of the result's storage, one for each element. None where it is too large to have been made.
    """

    @property
    def tensor(self) -> StridedTensor:
        return self.steps[-1].tensor

    def sharing(self) -> tuple[ExpressionStep, ...]:
        """The steps before the last whose tensors are in the same memory."""
        storage = self.tensor.storage
        return tuple(step for step in self.steps[:-1] if step.tensor.storage == storage)


def storage_name(number: int) -> str:
    """A, B, ..., Z, S26, S27."""
    return chr(ord("A") + number) if number < 26 else f"S{number}"
