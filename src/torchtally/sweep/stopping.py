"""Rules by which runs are stopped that do worse than others, looked at now and then."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import SimpleNamespace

from torchtally.errors import needed_package
from torchtally.sweep.folder import SweepFolder
from torchtally.sweep.median import is_above_median
from torchtally.sweep.progress import Going
from torchtally.sweep.results import LossSeries, Status, result_of

LOOK_S = 2.0
"""Between two looks at the logs of all runs."""
MEDIAN, ASHA = "median", "asha"
HALVINGS = 3
"""Of ASHA: a run is first looked at after 1 / 4**3 of its steps."""
FACTOR = 4


class StoppingRule(ABC):
    """Which of the runs that go on are worse than the others, by their logs."""

    status: Status
    """Of a run that is stopped."""
    reason: str

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
            and losses[name]
            and self.is_worse(name, losses, run.steps)
            and losses[name][-1][0] < run.steps
        ]
        self.worse |= {*names}
        return names

    @abstractmethod
    def is_worse(self, name: str, losses: Mapping[str, LossSeries], steps: int) -> bool:
        """Whether a run of so many steps is to be stopped; `losses` are those of all runs."""


class MedianRule(StoppingRule):
    """Median stopping, see `median`."""

    status, reason = Status.WORSE, "above the median of the others at its step"

    def is_worse(self, name: str, losses: Mapping[str, LossSeries], steps: int) -> bool:
        return is_above_median(losses[name], [losses[n] for n in losses if n != name])


class AshaRule(StoppingRule):
    """Asynchronous successive halving by Ray Tune's own scheduler: at 1/64, 1/16 and 1/4 of its
    steps a run goes on if it is among the best quarter of those that came as far (Li et al. 2018,
    arXiv 1810.05934).
    """

    status, reason = Status.BELOW_RUNG, "not among the best quarter at its step"

    def __init__(self, folder: SweepFolder, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(folder, clock)
        schedulers = needed_package("ray.tune.schedulers", "--stop-worse-by asha", "ray")
        definition = folder.definition
        steps = max(definition.train_config(point).steps for point in definition.points)
        self._scheduler = schedulers.AsyncHyperBandScheduler(
            time_attr="step", metric="loss", mode="min", max_t=steps,
            grace_period=max(1, steps // FACTOR**HALVINGS), reduction_factor=FACTOR,
            stop_last_trials=False,
        )  # fmt: skip
        self._told: dict[str, int] = {}
        """Losses that the scheduler knows, by run."""

    def is_worse(self, name: str, losses: Mapping[str, LossSeries], steps: int) -> bool:
        trial = SimpleNamespace(trial_id=name)
        if name not in self._told:
            self._scheduler.on_trial_add(None, trial)
        new = losses[name][self._told.get(name, 0) :]
        self._told[name] = len(losses[name])
        answers = [
            self._scheduler.on_trial_result(None, trial, {"step": step, "loss": loss})
            for step, loss in new
        ]
        return "STOP" in answers


RULES: Mapping[str, Callable[[SweepFolder], StoppingRule]] = {MEDIAN: MedianRule, ASHA: AshaRule}
