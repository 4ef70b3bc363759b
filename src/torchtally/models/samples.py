"""What a batch is of, and how a model is called with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSample:
    """What a batch is of; None: what is usual for the model."""

    batch: int = 1
    sequence: int | None = None
    """Tokens, those of images and speech among them; of the decoder where there is an encoder."""
    source: int | None = None
    """Tokens that an encoder reads, or that an image is made by."""
    images: tuple[int, int] | None = None
    """(how many a sample has, pixels of a side)."""
    audio_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The inputs of one call, by name."""

    inputs: Mapping[str, Any]
    sample: str
    """In words, what one sample is."""
    tokens: int = 0
    """Of one sample, where it is of text."""
    used: frozenset[str] = frozenset()
    """The fields of `ModelSample` that it goes by."""


SEQUENCE, SOURCE, IMAGES, AUDIO = "sequence", "source", "images", "audio"
"""Fields of `ModelSample`."""
OPTIONS = {
    SEQUENCE: "--sequence",
    SOURCE: "--source-sequence",
    IMAGES: "--images",
    AUDIO: "--audio",
}
"""Of `tally plan`, by the field that they give."""
