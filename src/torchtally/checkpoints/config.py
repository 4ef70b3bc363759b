"""When checkpoints are made, and which are kept."""

from dataclasses import dataclass

from torchtally.checkpoints.checked import Positive, Size, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints, in `checkpoints` below the run's folder."""

    every: Size | None = None
    """Steps between checkpoints."""
    every_minutes: Positive | None = 10.0
    """Minutes between checkpoints."""
    at_end: bool = True
    """Also save after the last step."""
    keep_last: Size = 2
    """How many of the newest are kept; more than one, in case one is damaged."""
    keep_every: Size | None = None
    """Checkpoints of steps divisible by it are never removed."""
    keep_best: bool = False
    """Also save where the validation loss is the lowest so far, and keep that until a lower one."""
    in_background: bool = True
    """Write while training continues, from a copy in host memory."""
    follows_links: bool = False
    """Whether `checkpoints` may be a symbolic link."""

    def __post_init__(self) -> None:
        check_fields(self)
