"""The runs of a sweep that are not there yet: jobs, what executes them, and what they left."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.progress import TextStream
from torchtally.runs.processes import Executor, Exit, Job, Processes
from torchtally.sweep.conduct import TRAIN_MODULES, StopSignals, conduct
from torchtally.sweep.definition import SweepPoint
from torchtally.sweep.devices import THREADS, share
from torchtally.sweep.folder import SweepFolder
from torchtally.sweep.on_ray import RayTasks
from torchtally.sweep.progress import Going, SweepProgress
from torchtally.sweep.results import ending, result_of
from torchtally.sweep.stopping import RULES
from torchtally.train.config import TrainConfig

CHECKPOINTLESS = ("--checkpoint.no-at-end",)


@dataclass(frozen=True, slots=True)
class Making:
    """Way in which runs are made ("processes", "ray"); None: as many as suit the machine."""

    where: str
    workers: int | None
    threads: int | None
    rule: str | None = None
    """What runs are stopped that do worse than others: MEDIAN, ASHA; None: none is."""

    def executor(self, folder: SweepFolder, config: TrainConfig, runs: int) -> tuple[Executor, int]:
        """What makes the runs, and how many at a time."""
        if self.where == "processes":
            shares = share(config, workers=self.workers, threads=self.threads, runs=runs)
            return Processes(shares, preload=TRAIN_MODULES), len(shares)
        points = {point.name: point for point in folder.definition.points}
        cpus = self.threads or 1
        most = min(self.workers or runs, runs)
        wants_gpu = None if config.device == "auto" else config.device.startswith("cuda")
        tasks = RayTasks(
            folder.path, cpus=cpus, environment={THREADS: str(cpus)}, most=most,
            wants_gpu=wants_gpu, again=lambda name: job(folder, points[name]),
        )  # fmt: skip
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

    rule = None if making.rule is None else RULES[making.rule](folder)

    def end_run(exited: Exit) -> None:
        point = points[exited.name]
        run_ending = ending(
            exited,
            folder.output(point),
            is_stopping=bool(signals.number),
            worse=rule.status if rule is not None and exited.name in rule.worse else None,
        )
        folder.note(point, run_ending)
        if run_ending.status.is_final and not folder.definition.keeps_checkpoints:
            folder.remove_checkpoints(point)
        progress.end_run(result_of(folder, point))

    def passing() -> None:
        progress.passing()
        if rule is None:
            return
        for name in rule.newly_worse(progress.going):
            progress.say(f"{name}: stopped, {rule.reason}")
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
