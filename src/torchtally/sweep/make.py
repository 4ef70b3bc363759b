"""The runs of a sweep that are not there yet: jobs, what executes them, and what they left."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchtally.progress import TextStream
from torchtally.runs.processes import Executor, Exit, Job, Processes
from torchtally.sweep.conduct import TRAIN_MODULES, StopSignals, conduct
from torchtally.sweep.definition import SweepPoint
from torchtally.sweep.devices import THREADS, share
from torchtally.sweep.folder import SweepFolder
from torchtally.sweep.median import is_above_median
from torchtally.sweep.on_ray import RayTasks
from torchtally.sweep.progress import Going, SweepProgress
from torchtally.sweep.results import ending, result_of
from torchtally.train.config import TrainConfig

LOOK_S = 2.0
"""Between two looks at the logs of all runs."""
CHECKPOINTLESS = ("--checkpoint.no-at-end",)


@dataclass(frozen=True, slots=True)
class Making:
    """Way in which runs are made ("processes", "ray"); None: as many as suit the machine."""

    where: str
    workers: int | None
    threads: int | None
    stops_worse: bool = False
    """Whether runs above the median of the others are stopped."""

    def executor(self, folder: SweepFolder, config: TrainConfig, runs: int) -> tuple[Executor, int]:
        """What makes the runs, and how many at a time."""
        if self.where == "processes":
            shares = share(config, workers=self.workers, threads=self.threads, runs=runs)
            return Processes(shares, preload=TRAIN_MODULES), len(shares)
        cpus = self.threads or 1
        most = min(self.workers or runs, runs)
        wants_gpu = None if config.device == "auto" else config.device.startswith("cuda")
        tasks = RayTasks(
            folder.path, cpus=cpus, environment={THREADS: str(cpus)}, most=most, wants_gpu=wants_gpu
        )
        return tasks, most


def make_runs(folder: SweepFolder, making: Making, *, stream: TextStream, width: int) -> int:
    """Make all runs that are not there yet. The signal that ended it, or 0."""
    points = {point.name: point for point in folder.definition.points}
    waiting = [point for point in points.values() if not result_of(folder, point).status.is_final]
    if not waiting:
        return 0
    config = folder.definition.train_config(waiting[0])
    executor, workers = making.executor(folder, config, len(waiting))
    progress = SweepProgress(
        stream, runs=len(points), kept=len(points) - len(waiting), workers=workers, width=width
    )
    where = "by Ray" if making.where == "ray" else f"{workers} at a time"
    progress.say(opening(folder, config, waiting, where))

    def begin_run(job: Job) -> None:
        point = points[job.name]
        folder.begin(point)
        steps = folder.definition.train_config(point).steps
        progress.going[job.name] = Going(job.name, steps, folder.run(point))

    rule = MedianRule(folder) if making.stops_worse else None

    def end_run(exited: Exit) -> None:
        point = points[exited.name]
        run_ending = ending(
            exited,
            folder.output(point),
            is_stopping=bool(signals.number),
            is_worse=rule is not None and exited.name in rule.worse,
        )
        folder.note(point, run_ending)
        if run_ending.status.is_final and not folder.definition.keeps_checkpoints:
            folder.remove_checkpoints(point)
        progress.end_run(result_of(folder, point))

    def passing() -> None:
        progress.passing()
        for name in rule.newly_worse(progress.going) if rule is not None else ():
            progress.say(f"{name}: stopped, above the median of the others at its step")
            executor.stop(name)

    with executor, StopSignals() as signals:
        conduct(
            (job(folder, point) for point in waiting),
            executor,
            signals,
            started=begin_run,
            ended=end_run,
            passing=passing,
            stopping=lambda n: progress.say(
                f"stopping: {n} run{'s' * (n != 1)} may save first; once more kills at once"
            ),
        )
    progress.close()
    return signals.number


class MedianRule:
    """Which of the runs that go on are worse than the others; looked at now and then."""

    def __init__(self, folder: SweepFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock, self._looked_s = folder, clock, clock()
        self.worse: set[str] = set()

    def newly_worse(self, going: Mapping[str, Going]) -> list[str]:
        """Those among the running that were not before; at its last step a run ends by itself."""
        if self._clock() - self._looked_s < LOOK_S:
            return []
        self._looked_s = self._clock()
        results = {
            point.name: result_of(self._folder, point) for point in self._folder.definition.points
        }
        by_validation = any(result.validation for result in results.values())
        losses = {
            name: result.validation if by_validation else result.training
            for name, result in results.items()
        }
        names = [
            name
            for name, run in going.items()
            if name not in self.worse
            and is_above_median(losses[name], [losses[n] for n in losses if n != name])
            and losses[name][-1][0] < run.steps
        ]
        self.worse |= {*names}
        return names


def job(folder: SweepFolder, point: SweepPoint) -> Job:
    """A run as a process: `tally train` with its values; going on where it has begun before."""
    checkpoints = () if folder.definition.keeps_checkpoints else CHECKPOINTLESS
    return Job(
        name=point.name,
        arguments=(
            "train",
            *(["--resume"] if folder.has_log(point) else []),
            str(folder.config),
            *checkpoints,
            *point.flags,
            f"--log.folder={folder.run(point)}",
        ),
        output=str(folder.output(point)),
        folder=os.getcwd(),
    )


def opening(
    folder: SweepFolder, config: TrainConfig, waiting: Sequence[SweepPoint], where: str
) -> str:
    """What is about to be done."""
    runs, left = len(folder.definition.points), len(waiting)
    kept = f"{runs - left} of {runs} are done, " if left < runs else ""
    text = f"{kept}{left} run{'s' * (left != 1)} to go, {where}, in {folder.path}"
    if config.task == "language" and config.data.text and left > 1:
        text += (
            "\n"
            "every run tokenizes data.text itself; `tally data prepare` does it once, for "
            "data.train"
        )
    return text
