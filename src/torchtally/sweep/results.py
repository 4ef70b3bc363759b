"""The result of a run: how its process ended, and what its log says."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import mean, pstdev
from typing import Any, Literal

import msgspec

from torchtally.errors import UsageError
from torchtally.runs.children import last_lines
from torchtally.runs.processes import Exit
from torchtally.sweep.definition import SweepPoint
from torchtally.sweep.folder import SweepFolder
from torchtally.train.logs import names
from torchtally.train.logs.jsonl import LogContents, read_log
from torchtally.train.outcome import StepError

DIVERGED = StepError.exit_code
"""Exit code of a training that stopped at a NaN, an inf or a spike."""
STOPPED = (129, 130, 143, -1, -2, -15)
"""Exit codes after SIGHUP, SIGINT or SIGTERM: the run has saved, or had nothing to save."""
OUT_OF_MEMORY = re.compile(
    r"(device|host|CUDA|HIP) (is )?out of memory|OutOfMemoryError|MemoryError|DefaultCPUAllocator"
)
ERROR = "tally: error: "
"""Prefix of the command's own errors."""


class Status(StrEnum):
    """How a run ended."""

    ENDED = "ended"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    WORSE = "above the median"
    """Stopped by the sweep: see `median`."""
    BELOW_RUNG = "stopped by asha"
    """By the sweep, too: see `stopping`."""
    STOPPED = "stopped"
    """By a signal: it continues when the sweep is resumed."""
    WAITING = "not run"

    @property
    def is_final(self) -> bool:
        """Whether a resumed sweep keeps it. Failed runs are retried: the cause may be gone."""
        return self in (Status.ENDED, Status.DIVERGED, Status.WORSE, Status.BELOW_RUNG)

    @property
    def is_failure(self) -> bool:
        return self in (Status.FAILED, Status.OUT_OF_MEMORY)


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a run's process ended, as stored in its folder."""

    format_version: Literal[1] = 1
    status: Status
    exit_code: int | None = None
    wall_s: float | None = None
    """Of its process; for a resumed run, since resuming."""
    message: str = ""
    """The end of its output, if it failed."""

    @property
    def gist(self) -> str:
        """One line of the message: tally's error, or the last line."""
        lines = [line for line in self.message.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(ERROR)]
        return (errors or lines or ["no output"])[-1].removeprefix(ERROR).strip()


def ending(
    exited: Exit, output: Path, *, is_stopping: bool, worse: Status | None = None
) -> RunEnding:
    """The meaning of a process's exit. `is_stopping`: runs were asked to stop; `worse`: this one
    was, since others do better, and how that is called.
    """
    output_text = exited.problem or last_lines(output)
    status = _status(exited, output_text, is_stopping)
    if worse is not None and status is Status.STOPPED:
        status = worse
    if exited.code < 0 and status is Status.FAILED:
        output_text = f"{output_text}\nKilled by signal {-exited.code}." + (
            " The OOM killer does that when the host runs out of memory."
            if exited.code == -9
            else ""
        )
    has_message = status in (Status.DIVERGED, Status.OUT_OF_MEMORY, Status.FAILED)
    message = output_text.strip() if has_message else ""
    wall_s = round(exited.wall_s, 3)
    return RunEnding(status=status, exit_code=exited.code, wall_s=wall_s, message=message)


def _status(exited: Exit, output_text: str, is_stopping: bool) -> Status:
    if exited.problem:
        return Status.FAILED
    if exited.code == 0:
        return Status.ENDED
    if exited.code == DIVERGED:
        return Status.DIVERGED
    if exited.code in STOPPED or is_stopping:
        return Status.STOPPED
    return Status.OUT_OF_MEMORY if OUT_OF_MEMORY.search(output_text) else Status.FAILED


def read_ending(path: Path) -> RunEnding:
    """The stored ending of a run; WAITING if there is none or it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunEnding)
    except (OSError, ValueError, RecursionError):
        return RunEnding(status=Status.WAITING)


# Results ----------------------------------------------------------------------------------------

LossSeries = tuple[tuple[int, float], ...]
"""(step, loss), in ascending order of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The values of a run, how it ended, and its losses so far."""

    point: SweepPoint
    ending: RunEnding
    training: LossSeries = ()
    validation: LossSeries = ()
    records: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """(step, values) of all log records."""

    @property
    def status(self) -> Status:
        if self.ending.status is Status.WAITING and self.training:
            return Status.STOPPED
        return self.ending.status

    @property
    def steps(self) -> int:
        """The last logged step."""
        return self.training[-1][0] if self.training else 0

    @property
    def final_loss(self) -> float | None:
        return self.training[-1][1] if self.training else None

    @property
    def best_loss(self) -> float | None:
        return _least(self.training)

    @property
    def validation_loss(self) -> float | None:
        """The last one."""
        return self.validation[-1][1] if self.validation else None

    @property
    def best_validation_loss(self) -> float | None:
        return _least(self.validation)

    @property
    def has_risen(self) -> bool:
        """Whether the loss is NaN or inf at the end, or rose: on validation data where two
        evaluations can be compared, else by the first and the last third of training's losses,
        which vary by batch.
        """
        if self.status is not Status.ENDED or not self.training:
            return False
        if not math.isfinite(self.training[-1][1]):
            return True
        if len(self.validation) > 1:
            return not self.validation[-1][1] <= self.validation[0][1]
        return _rises([loss for _, loss in self.training])

    @property
    def remark(self) -> str:
        """The status as shown in a table."""
        return f"{self.status}, loss rose" if self.has_risen else str(self.status)


STANDARD_ERRORS = 3.0
"""By which the mean of a training's last losses is above that of its first where it rose. Of nine
losses that only vary, one training in fifty is marked; of more, fewer."""
LEAST = 3
"""Losses in a third, for their spread to say something."""


def _rises(losses: Sequence[float]) -> bool:
    """Whether the last third's mean is above the first third's by more than batches explain."""
    count = len(losses) // 3
    first, last = losses[:count], losses[-count:]
    if count < LEAST or not all(map(math.isfinite, (*first, *last))):
        return False
    rise = mean(last) - mean(first)
    spread = math.hypot(pstdev(first), pstdev(last)) / math.sqrt(count - 1)
    return rise > STANDARD_ERRORS * spread


def _least(losses: LossSeries) -> float | None:
    return min((value for _, value in losses if math.isfinite(value)), default=None)


def result_of(folder: SweepFolder, point: SweepPoint) -> RunResult:
    """The result stored in the run's folder. An unreadable log counts as none."""
    run_ending = read_ending(folder.result(point))
    try:
        log: LogContents | None = read_log(folder.run(point))
    except UsageError:
        log = None
    if log is None:
        return RunResult(point=point, ending=run_ending)
    return RunResult(
        point=point,
        ending=run_ending,
        training=log.series(names.LOSS),
        validation=log.series(names.EVAL_LOSS),
        records=log.records,
    )


def rank_results(results: Sequence[RunResult]) -> list[RunResult]:
    """Best first: runs that ended, by loss, then the others.

    By the last validation loss if every run that ended has one, else by the last training loss.
    """
    return sorted(results, key=lambda result: _rank(result, is_validated(results)))


def is_validated(results: Sequence[RunResult]) -> bool:
    """Whether all runs that ended have a validation loss."""
    ended = [result for result in results if result.status is Status.ENDED]
    return bool(ended) and all(result.validation for result in ended)


ORDER = (Status.ENDED, Status.WORSE, Status.BELOW_RUNG, Status.STOPPED, Status.DIVERGED,
         Status.OUT_OF_MEMORY, Status.FAILED, Status.WAITING)  # fmt: skip


def _rank(result: RunResult, by_validation: bool) -> tuple[int, float]:
    loss = result.validation_loss if by_validation else result.final_loss
    place = ORDER.index(result.status)
    return place, loss if loss is not None and math.isfinite(loss) else math.inf
