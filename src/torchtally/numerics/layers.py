"""What formats would lose of one step's gradients and updates, by parameter."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from torchtally.number_formats import FORMATS

FP16_LARGEST = float(FORMATS["fp16"].layout.largest)


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """Counts of a parameter's gradient and update in one step; of several, their sums."""

    name: str
    numbers: int
    """Of the gradient: finite and not zero."""
    nonfinite: int
    largest: float
    """Magnitude of the gradient's largest number, unscaled."""
    fp16_underflows: int
    """Of the gradient, times the loss scale: would be zero in fp16."""
    fp16_overflows: int
    fp8_underflows: int
    """Of the gradient: would be zero in e5m2, with a scale for the tensor."""
    updates: int
    """Elements that the step changes, or would change if their format had the digits."""
    lost_updates: int | None
    """Of them, those that bf16 weights do not see: below half a step of the weight. None where
    updates are rounded at random, which keeps them on average."""

    def __add__(self, other: "LayerNumbers") -> "LayerNumbers":
        lost = (self.lost_updates, other.lost_updates)
        return LayerNumbers(
            self.name,
            self.numbers + other.numbers,
            self.nonfinite + other.nonfinite,
            max(self.largest, other.largest),
            self.fp16_underflows + other.fp16_underflows,
            self.fp16_overflows + other.fp16_overflows,
            self.fp8_underflows + other.fp8_underflows,
            self.updates + other.updates,
            None if None in lost else sum(each for each in lost if each is not None),
        )

    @property
    def fp16_underflow_share(self) -> float:
        return self.fp16_underflows / self.numbers if self.numbers else 0.0

    @property
    def fp8_underflow_share(self) -> float:
        return self.fp8_underflows / self.numbers if self.numbers else 0.0

    @property
    def lost_update_share(self) -> float | None:
        if self.lost_updates is None:
            return None
        return self.lost_updates / self.updates if self.updates else 0.0

    def headroom(self, loss_scale: float) -> float | None:
        """How many times larger gradients times the loss scale may become before fp16 overflows."""
        return FP16_LARGEST / (self.largest * loss_scale) if self.largest else None


def all_layers(layers: Iterable[LayerNumbers]) -> LayerNumbers:
    """Their sum."""
    nothing = LayerNumbers("all", 0, 0, 0.0, 0, 0, 0, 0, 0)
    return reduce(LayerNumbers.__add__, layers, nothing)
