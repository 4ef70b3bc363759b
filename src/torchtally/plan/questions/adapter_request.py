"""What is asked of low-rank adapters."""

from dataclasses import dataclass

from torchtally.plan.adapters import ALL
from torchtally.plan.inference.formats import WeightFormat


@dataclass(frozen=True, slots=True)
class AdapterRequest:
    """Fine-tuning that leaves the model's own weights as they are."""

    rank: int
    targets: tuple[str, ...] = (ALL,)
    dropout: float = 0.0
    has_magnitude: bool = False
    """DoRA."""
    base: WeightFormat | None = None
    """In which the frozen weights are kept; None: in 16 bits, or 32 by the recipe."""
