"""Progress of a sweep: one refreshed line on a terminal, sparse lines elsewhere."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtally.checkpoints.plain import from_json
from torchtally.progress import StatusLine, TextStream
from torchtally.sweep.results import RunResult, Status
from torchtally.train.logs import names
from torchtally.train.logs.jsonl import NAME as LOG
from torchtally.units import format_loss, format_seconds

STANDING_S = 60.0
"""Between two lines that stay, where no run ends."""
TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Going:
    """A run that goes on."""

    name: str
    steps: int
    """Wanted."""
    folder: Path

    def last(self) -> tuple[int, float] | None:
        """(step, loss) as they were last logged."""
        return last_logged(self.folder / LOG)


class SweepProgress:
    """Counts runs and tells of them. Nobody listening any more is no error of the sweep's."""

    def __init__(
        self,
        stream: TextStream,
        *,
        runs: int,
        kept: int = 0,
        workers: int,
        width: int = 80,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = StatusLine(stream, clock=clock, sparse_s=STANDING_S, width=width)
        self._runs, self._workers = runs, workers
        self.going: dict[str, Going] = {}
        self._done, self._bad = kept, 0
        self._walls_s: list[float] = []

    def end_run(self, result: RunResult) -> None:
        """A run has ended: a line of its own."""
        self.going.pop(result.point.name, None)
        self._done += 1
        self._bad += result.status.is_failure
        if result.ending.wall_s is not None:
            self._walls_s.append(result.ending.wall_s)
        loss = result.final_loss
        parts = [result.remark]
        if result.status is Status.DIVERGED:
            parts[0] += f" after step {result.steps}"
        if loss is not None:
            parts.append(f"loss {format_loss(loss)}")
        if result.validation_loss is not None:
            parts.append(f"validation loss {format_loss(result.validation_loss)}")
        if result.ending.wall_s is not None:
            parts.append(format_seconds(result.ending.wall_s))
        self.say(f"{self._done}/{self._runs} {result.point.name}: {', '.join(parts)}")
        if result.status.is_failure:
            self.say(f"    {result.ending.gist}")

    def passing(self) -> None:
        """Time has passed: draw the line where it is due."""
        if self._status.is_due():
            self._status.draw(self.line())

    def line(self) -> str:
        """tally: 3/8 runs done, 1 failed, 2 going, 4 min left: lr=0.1 step 40/100 loss 2.301."""
        moments = [(going, going.last()) for going in self.going.values()]
        head = f"tally: {self._done}/{self._runs} runs done"
        if self._bad:
            head += f", {self._bad} failed"
        head += f", {len(moments)} going"
        left_s = self._left_s([(going.steps, at) for going, at in moments])
        if left_s is not None:
            head += f", {format_seconds(left_s)} left"
        texts = [_moment(going, at) for going, at in moments]
        return (f"{head}: {'; '.join(texts)}" if texts else head)[: self._status.width]

    def say(self, text: str) -> None:
        """Lines that stay, above the one that moves."""
        self._status.say("\n".join(f"tally: {line}" for line in text.splitlines()))

    def close(self) -> None:
        """The line that moves goes away."""
        self._status.erase()

    def _left_s(self, going: Sequence[tuple[int, tuple[int, float] | None]]) -> float | None:
        """Seconds until all are done, if the rest takes what those took that ended; None before any
        has.
        """
        if not self._walls_s:
            return None
        mean_s = sum(self._walls_s) / len(self._walls_s)
        begun = sum(at[0] / steps for steps, at in going if at is not None)
        return mean_s * max(self._runs - self._done - begun, 0.0) / self._workers


def _moment(going: Going, at: tuple[int, float] | None) -> str:
    if at is None:
        return f"{going.name} starting"
    return f"{going.name} step {at[0]}/{going.steps} loss {format_loss(at[1])}"


def last_logged(log: Path) -> tuple[int, float] | None:
    """(step, loss) of the last whole record that has a loss; None where there is none yet."""
    try:
        with open(log, "rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        try:
            record = json.loads(line)
            return int(record["step"]), float(from_json(record[names.LOSS]))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return None
