"""Names of Lightning's Trainer: its callbacks, its position in the data, and its handlers of
signals.
"""

import sys
from importlib import import_module
from typing import Any

from torchtally.errors import UsageError


def callback_base(name: str) -> Any:
    """The base class of a callback of ours. Raises UsageError without Lightning."""
    # Each package has classes of its own, and a Trainer takes those of its own alone.
    is_old = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    try:
        return import_module("pytorch_lightning" if is_old else "lightning.pytorch").Callback
    except ImportError as error:
        raise UsageError(
            f"torchtally.{name} is for Lightning's Trainer: pip install 'torchtally[lightning]'."
        ) from error


def data_of(trainer: Any) -> tuple[Any, list[Any]]:
    """(what the training loop takes batches from, its loaders)."""
    loop = trainer.fit_loop
    return loop._data_fetcher, loop._combined_loader.flattened


def is_accumulating(trainer: Any) -> bool:
    """Whether the loop takes the batch that has begun for one without an update."""
    return bool(trainer.fit_loop._should_accumulate())


def leave_signals(trainer: Any) -> None:
    """Put back the handlers that were there before Lightning's; a second call does nothing."""
    trainer._signal_connector.teardown()
