"""Logs that get the values of a monitored loop: functions, and TensorBoard's writers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torchtally.errors import UsageError

LogFunction = Callable[[dict[str, Any], int], Any]
"""Takes values by name, and the step: wandb.log, trackio.log, accelerator.log."""


class GuardedLog:
    """A log that is dropped when it fails: none is worth a training."""

    def __init__(self, log: LogFunction) -> None:
        self._log: LogFunction | None = log

    def write(self, values: dict[str, Any], step: int) -> str:
        """Raises nothing; says once what fails."""
        if self._log is None:
            return ""
        try:
            self._log(values, step)
        except Exception as error:
            self._log = None
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return f"warning: a log failed and is dropped from step {step} on ({what})."
        return ""


def guarded_logs(log: Any) -> tuple[GuardedLog, ...]:
    """Raises UsageError for what takes no values."""
    if log is None:
        return ()
    if isinstance(log, Iterable) and not callable(log):
        return tuple(guarded for each in log for guarded in guarded_logs(each))
    if hasattr(log, "add_scalar"):
        return (GuardedLog(partial(_write_scalars, log)),)
    if not callable(log):
        raise UsageError(
            f"monitor: log is {type(log).__name__}. These work: wandb.log, trackio.log, "
            "accelerator.log, a SummaryWriter, or any function of a dict and the step."
        )
    return (GuardedLog(log),)


def _write_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
