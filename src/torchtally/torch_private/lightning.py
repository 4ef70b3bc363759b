"""Of Lightning's Trainer: where its loop is in the data, and its handlers of signals."""

from typing import Any


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
