"""A whole training of a script: every second of it by cause, from the steps that were traced.

Blocks of the training loop that run in one of so many steps (`trace/loop.py`) recur as often as the
script's own interval says, and take what they took in the run.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from torchtally.ledger import Ledger
from torchtally.table import Cell, Column, Number, Prose, Table, sentences
from torchtally.trace import Frame, Phase, Role
from torchtally.trace.loop import Recurring, TrainingLoop
from torchtally.units import Unit
from torchtally.views.loading import slow_loading
from torchtally.views.money import why_no_time

COLUMNS = (
    Column("cause", "", Unit.NAME),
    Column("seconds", "time", Unit.SECONDS),
    Column("run_share", "share", Unit.FRACTION),
    Column("count", "times", Unit.COUNT),
    Column("seconds_each", "each", Unit.SECONDS),
    Column("text", "when", Unit.TEXT),
)


@dataclass(frozen=True, slots=True)
class TimeCause:
    """What recurs in a training: how often, and the seconds that it takes each time."""

    name: str
    times: int
    seconds_each: float
    text: str = ""

    @property
    def seconds(self) -> float:
        """Sum of all times."""
        return self.times * self.seconds_each


def whole_training(
    ledger: Ledger, steps: int | None = None, disk_byte_per_s: float | None = None
) -> Table:
    """The causes, with a sum; what is not known is said below.

    `steps` is the length where the script does not say it, `disk_byte_per_s` the speed of saves.
    """
    loop = TrainingLoop.of_facts(ledger.trace.facts) or TrainingLoop(None, "", ())
    length = steps or loop.steps
    missing = why_no_time(ledger)
    if not missing and length is None:
        missing = "the script's source does not say how many steps it takes; give --until 600000"
    if missing or length is None:
        return Table(title="The whole training", columns=COLUMNS, rows=(), totals=(None,) * 6,
                     note=f"Unknown: {missing}.")  # fmt: skip
    causes = list(causes_of(ledger, loop, length, disk_byte_per_s))
    total_s = sum(cause.seconds for cause in causes)
    rows: list[tuple[Cell, ...]] = [
        (cause.name, cause.seconds, cause.seconds / total_s, cause.times, cause.seconds_each,
         cause.text)
        for cause in causes
    ]  # fmt: skip
    return Table(
        title=("The whole training, ", Number(length, Unit.STEPS), " steps"),
        columns=COLUMNS,
        rows=tuple(rows),
        totals=("total", total_s, 1.0, None, None, ""),
        note=sentences(*_unknown(ledger, loop, disk_byte_per_s)),
    )


def causes_of(
    ledger: Ledger, loop: TrainingLoop, steps: int, disk_byte_per_s: float | None
) -> Iterator[TimeCause]:
    """Steps, then what recurs between them, then batches that come too late."""
    yield TimeCause("training", steps, ledger.step_s or 0.0, loop.text)
    for block, seconds_each in evaluations(ledger, loop):
        times = 1 if block is None else ceil(steps / block.every)
        yield TimeCause("evaluation", times, seconds_each, "" if block is None else block.text)
    saved_bytes = size_of_save(ledger)
    for block in loop.recurring:
        if block.saves and disk_byte_per_s:
            times = ceil(steps / block.every)
            yield TimeCause("saving", times, saved_bytes / disk_byte_per_s, block.text)
    if slow := slow_loading(ledger):
        yield TimeCause("loading", steps, slow.loading.batch_s - slow.step_s, "waiting for batches")


def evaluations(ledger: Ledger, loop: TrainingLoop) -> Iterator[tuple[Recurring | None, float]]:
    """(the block that evaluates, seconds of one such evaluation); None: in no block of the loop."""
    seconds: dict[Recurring | None, dict[int, float]] = {}
    ends = ledger.trace.step_ends
    for entry in ledger.entries:
        if entry.op.phase is Phase.EVALUATION:
            block = block_of(entry.site.frames, loop)
            of_block = seconds.setdefault(block, {})
            step = bisect_right(ends, entry.op.clock)
            of_block[step] = of_block.get(step, 0.0) + ledger.slot(entry).seconds
    for block, by_step in seconds.items():
        yield block, sum(by_step.values()) / len(by_step)


def block_of(frames: tuple[Frame, ...], loop: TrainingLoop) -> Recurring | None:
    """The smallest block that an operator runs below."""
    around = [
        block
        for block in loop.recurring
        for frame in frames
        if frame.file == block.file and block.first_line <= frame.line <= block.last_line
    ]
    return min(around, key=lambda block: block.last_line - block.first_line, default=None)


def size_of_save(ledger: Ledger) -> int:
    """Parameters and optimizer state at the end of the run: what a checkpoint to go on from has."""
    end = ledger.trace.end
    return sum(
        storage.bytes
        for storage in ledger.trace.storages
        if storage.role in (Role.PARAMETER, Role.OPTIMIZER_STATE)
        and (storage.died is None or storage.died >= end)
    )


def _unknown(ledger: Ledger, loop: TrainingLoop, disk_byte_per_s: float | None) -> Iterator[Prose]:
    if any(block.saves for block in loop.recurring):
        size = Number(size_of_save(ledger), Unit.BYTES)
        if disk_byte_per_s is None:
            yield ("Saves of ", size, " are not counted: give the disk's speed, --disk 2GB/s.")
        else:
            yield ("A save is assumed to write parameters and optimizer state, ", size, ".")
    yield "Not counted: start, compilation, failures, and what the run did not reach."
