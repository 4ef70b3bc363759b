"""The one way from a word on the command line to a model."""

import os
from dataclasses import replace
from pathlib import Path

from torchtally.errors import UsageError
from torchtally.plan.architecture.checkpoint import INDEX, holds_checkpoint, read_checkpoint
from torchtally.plan.architecture.config import read_config
from torchtally.plan.architecture.config_keys import BY_HAND
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.weights import weights_of

CONFIG = "config.json"


def model(text: str) -> Model:
    """The model of a config.json, of a folder or .safetensors beside one, or of the table's name.

    What ends in .json or .safetensors is a path, and so is what begins with "." or a separator, and
    whatever is no name of the table but is there. Raises UsageError with the near matches.
    """
    if _is_path(text):
        return _of_path(Path(text))
    try:
        return known_model(text)
    except UsageError:
        if os.path.exists(text):
            return _of_path(Path(text))
        raise


def config_of(text: str) -> Path:
    """The config.json that a path names: itself, or the one in a folder or beside weights."""
    path = Path(text).expanduser()
    return _config_beside(path) if path.is_dir() or _has_weights(path) else path


def is_file(text: str) -> bool:
    """It is a path, not a name of the table."""
    return _is_path(text) or os.path.exists(text)


def count_alone(text: str) -> int | None:
    """Parameters of a checkpoint without a config.json beside it; None of anything else.

    Their number is all that its header tells: names and shapes say nothing of heads. Raises
    UsageError for a file that is not a checkpoint.
    """
    path = Path(text).expanduser()
    if not _has_weights(path) or _config_beside(path).is_file():
        return None
    return read_checkpoint(path).parameters


def _config_beside(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / CONFIG


def _is_path(text: str) -> bool:
    """It cannot be a name of the table."""
    return text.endswith((".json", ".safetensors")) or text.startswith((".", os.sep))


def _has_weights(path: Path) -> bool:
    """It is a checkpoint, an index of one, or a folder with either."""
    if os.path.isdir(path):  # a name too long for the system is none, where Path.is_dir raises
        return holds_checkpoint(path)
    return path.suffix == ".safetensors" or path.name == INDEX


def _of_path(path: Path) -> Model:
    if _has_weights(path):
        return _beside(path)
    return read_config(path / CONFIG if path.is_dir() else path)


def _beside(path: Path) -> Model:
    """The config.json beside weights says the shape; the weights, how many there are of what."""
    checkpoint = read_checkpoint(path)
    parts = ", ".join(f"{n} of {dtype}" for dtype, n in checkpoint.elements_by_dtype) or "nothing"
    config = _config_beside(path)
    if not config.is_file():
        raise UsageError(
            f"{path}: holds {parts}, but not the architecture: there is no {CONFIG} beside it. "
            f"Give one, or --parameters {checkpoint.parameters}. {BY_HAND}"
        )
    read = read_config(config)
    counted = sum(weight.elements for weight in weights_of(read))
    note = f"the weights beside it hold {parts}"
    if counted != checkpoint.parameters:
        note += f"; its shape has {counted} parameters"
    return replace(read, notes=(*read.notes, note))
