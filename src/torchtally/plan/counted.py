"""A model that was counted in its own class, operator by operator, where no closed form exists."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CountedPart:
    """A module right below the model: a tower, a projector, a decoder."""

    name: str
    class_name: str
    parameters: int
    flops_forward: int
    bytes_saved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """Forward and backward of one micro-batch, as the class ran on the simulated GPU."""

    samples: int
    tokens: int
    """Of one sample, where it is of text: the decoder's. 0: it is an image."""
    sample: str
    """In words: "576 image tokens, 1024 text tokens"."""
    options: str
    """That change it: "--sequence, --images"."""
    inputs: str
    """What the class was called with."""
    flops_forward: int
    model_flops: int
    """Of products, convolutions and attention, forward and backward, each once."""
    bytes_saved: int
    """Held from the forward to the backward pass."""
    working_bytes: int
    """Held at most besides parameters and gradients."""
    seconds: float | None
    """Predicted; None for a chip whose speed is unknown."""
    parts: tuple[CountedPart, ...]
    """They sum to the model, with `CountedPart` "(itself)" for what is in none of them."""


@dataclass(frozen=True, slots=True)
class CountedModel:
    """What the class says of itself: numbers, and no shape of layers."""

    name: str
    """Of the class."""
    library: str
    parameters: int
    """A weight that two modules share counts once."""
    active: int
    """Those that one token meets; all but for a mixture of experts."""
    step: CountedStep | None = None
    why_not: str = ""
    """Why no step was counted."""
