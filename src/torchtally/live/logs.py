"""The lines of a log as observations."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torchtally.live.formats import CONTROLS, observation_of
from torchtally.live.observation import StepObservation, positive
from torchtally.live.prediction import PEAK, STEP_S, UNPREDICTED, logged_prediction
from torchtally.live.trainer import TrainerLines

LOSS = "train/loss"
MFU = "train/mfu"
TOKENS_PER_S = "train/tokens_per_second"
"""Names of values in log.jsonl: see torchtally/train/logs/names.py, whose room has torch."""
BLIND_LINES = 200
"""So many lines without a step, and it is said that none was recognised."""


class LogLines:
    """Reads one log; `predicted` is what the log itself predicts, where it does."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines = 0
        self.steps = 0
        self.predicted = UNPREDICTED
        self._trainer = TrainerLines()

    @property
    def is_blind(self) -> bool:
        """Whether lines enough were read, and none was of a known format."""
        return self.lines >= BLIND_LINES and not self.steps

    def observations(self, line: str) -> Iterator[StepObservation]:
        """Those that the line completes."""
        self.lines += 1
        yield from self._counted(self._observations(CONTROLS.sub("", line)))

    def rest(self) -> Iterator[StepObservation]:
        """What waits for a line that will not come."""
        yield from self._counted(self._trainer.rest())

    def _counted(self, observations: Iterator[StepObservation]) -> Iterator[StepObservation]:
        for observation in observations:
            self.steps += 1
            yield observation

    def _observations(self, line: str) -> Iterator[StepObservation]:
        if line.startswith('{"'):
            yield from self._of_record(record(line))
            return
        observation = observation_of(line)
        if observation is not None:
            yield observation
        else:
            yield from self._trainer.observations(line)

    def _of_record(self, values: Mapping[str, Any]) -> Iterator[StepObservation]:
        """Observations of a line of log.jsonl."""
        predicted = values.get("predicted")
        if values.get("kind") == "run" and isinstance(predicted, dict):
            self.predicted = logged_prediction(predicted, self.file)
        step = values.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or LOSS not in values:
            return
        mfu, peak = positive(values.get(MFU)), positive(values.get(PEAK))
        yield StepObservation(
            step=step,
            step_s=positive(values.get(STEP_S)),
            tokens_per_s=positive(values.get(TOKENS_PER_S)),
            mfu=None if mfu is None else mfu / 100,
            peak_bytes=None if peak is None else round(peak),
            logged_at_s=positive(values.get("unix_s")),
        )


def record(line: str) -> Mapping[str, Any]:
    """A line of JSON; empty for any other."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
