"""The same runs as tasks of Ray, on any machine of its cluster, or on this one where there is none.

A task starts the run's process where it is, as `processes` does here, and waits for it. All
machines see the sweep's folder, the config's data and the folder we were started in under the same
paths: a shared file system, through which they are also told to stop. A run whose machine or worker
is lost goes on elsewhere, from its newest checkpoint.
"""

import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError, needed_package
from torchtally.runs.processes import Exit, Job, Processes
from torchtally.sweep.conduct import SAVING_S

RETRIES = 3
"""Of a run that Ray loses."""
LOST = ("WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError")
"""Ray's errors of a task whose worker or machine is gone."""
POLL_S = 0.2
"""For a run that was asked to save and end."""


def check_ray() -> None:
    """Raise UsageError without the `ray` extra."""
    _package()


class RayTasks:
    """An `Executor` by Ray: each run has `cpus` cores, and a GPU where `wants_gpu`."""

    def __init__(
        self, folder: Path, *, cpus: int, environment: Mapping[str, str], most: int,
        wants_gpu: bool | None, again: Callable[[str], Job],
        module: str = "torchtally",
    ) -> None:  # fmt: skip
        """`most` runs at a time; `wants_gpu` None: where the cluster has any; `again` is the job
        that goes on with a run that was lost; `module` is run as `python -m` does.
        """
        self._cpus, self._environment, self._most = cpus, environment, most
        self._wants_gpu = wants_gpu
        self._again, self._module, self._losses = again, module, Counter[str]()
        self._stop = folder / f".stop-{secrets.token_hex(8)}"
        self._refs: dict[Any, str] = {}
        self._ray: Any = None
        self._task: Any = None

    def __enter__(self) -> "RayTasks":
        ray = self._ray = _package()
        try:
            # The cluster of RAY_ADDRESS, else one that runs here, else a new one.
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray has errors of its own
            raise UsageError(
                f"Ray did not start ({error}). Does RAY_ADDRESS point to a running cluster?"
            ) from error
        gpus = ray.cluster_resources().get("GPU", 0)
        has_gpu = gpus > 0 if self._wants_gpu is None else self._wants_gpu
        self._task = ray.remote(num_cpus=self._cpus, num_gpus=int(has_gpu), max_retries=0)(run_job)
        return self

    def __exit__(self, *error: object) -> None:
        # A worker of Ray's that is killed takes its run with it, by the pipe between them.
        for ref in self._refs:
            self._ray.cancel(ref, force=True)
        self._ray.shutdown()
        for file in self._stop.parent.glob(f"{self._stop.name}*"):
            file.unlink(missing_ok=True)

    @property
    def has_room(self) -> bool:
        return len(self._refs) < self._most

    def start(self, job: Job) -> None:
        stops = (str(self._stop), str(self._stop_of(job.name)))
        ref = self._task.remote(job, dict(self._environment), stops, self._module)
        self._refs[ref] = job.name

    def collect_ended(self) -> list[Exit]:
        if not self._refs:
            return []
        refs = list(self._refs)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        return [exit_ for ref in ready if (exit_ := self._exit(ref)) is not None]

    def stop(self, name: str | None = None) -> None:
        (self._stop if name is None else self._stop_of(name)).touch()

    def _stop_of(self, name: str) -> Path:
        """The file that asks one run to stop."""
        return self._stop.with_name(f"{self._stop.name}-{name}")

    def _exit(self, ref: Any) -> Exit | None:
        """How a run ended; None of one that was lost and is started again."""
        name = self._refs.pop(ref)
        try:
            exit_ = self._ray.get(ref)
        except Exception as error:  # Ray's own
            if type(error).__name__ in LOST and self._losses[name] < RETRIES:
                self._losses[name] += 1
                self.start(self._again(name))
                return None
            return Exit(name, -1, 0.0, f"Ray lost the run: {type(error).__name__}: {error}")
        assert isinstance(exit_, Exit)
        return exit_


def run_job(
    job: Job, environment: Mapping[str, str], stops: tuple[str, ...], module: str = "torchtally"
) -> Exit:
    """Run a job on the machine this is called on; ask it to end once one of the files exists."""
    missing = [
        name for name in (job.folder, str(Path(job.output).parent)) if not Path(name).is_dir()
    ]
    if missing:
        return Exit(
            job.name,
            -1,
            0.0,
            f"{socket.gethostname()} does not see {missing[0]}. With --on ray all machines need "
            "the same file system below the same paths.",
        )
    if is_asked(stops):
        return Exit(job.name, -15, 0.0)
    # A server would serve one run: nothing to share.
    with Processes([environment], module=module, is_warm=False) as processes:
        processes.start(job)
        deadline_s: float | None = None
        while True:
            if exits := processes.collect_ended():
                return exits[0]
            if deadline_s is None and is_asked(stops):
                processes.stop()
                deadline_s = time.monotonic() + SAVING_S
            if deadline_s is not None and time.monotonic() > deadline_s:
                return Exit(job.name, -15, SAVING_S)
            time.sleep(POLL_S)


def is_asked(stops: tuple[str, ...]) -> bool:
    """Whether one of the files exists that ask a run to stop."""
    return any(Path(stop).exists() for stop in stops)


def _package() -> Any:
    return needed_package("ray", "--on ray", "ray")
