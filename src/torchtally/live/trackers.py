"""Logs that get the values of a monitored loop: functions, and TensorBoard's writers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torchtally.errors import UsageError

LogFunction = Callable[[dict[str, Any], int], Any]
"""Takes values by name, and the step: wandb.log, trackio.log, accelerator.log."""


def log_functions(log: Any) -> list[LogFunction]:
    """Functions of a log, or of several. Raises UsageError for what takes no values."""
    if log is None:
        return []
    if isinstance(log, Iterable) and not callable(log):
        return [function for each in log for function in log_functions(each)]
    if hasattr(log, "add_scalar"):
        return [partial(_write_scalars, log)]
    if not callable(log):
        raise UsageError(
            f"monitor: log is {type(log).__name__}. These work: wandb.log, trackio.log, "
            "accelerator.log, a SummaryWriter, or any function of a dict and the step."
        )
    return [log]


def _write_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
