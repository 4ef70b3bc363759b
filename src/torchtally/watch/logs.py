"""The lines of a log as observations."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torchtally.watch.expectation import PEAK, STEP_S, ExpectedStep, logged_expectation
from torchtally.watch.formats import CONTROLS, observation_of
from torchtally.watch.observation import StepObservation
from torchtally.watch.trainer import TrainerLines, float_of

LOSS = "train/loss"
MFU = "train/mfu"
TOKENS_PER_S = "train/tokens_per_second"
"""Names of values in log.jsonl: see torchtally/train/logs/names.py, whose room has torch."""
BLIND_LINES = 200
"""So many lines without a step, and it is said that none was recognised."""


class LogLines:
    """Reads one log; `expectation` is what the log itself predicts, where it does."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines = 0
        self.steps = 0
        self.expectation: ExpectedStep | None = None
        self._trainer = TrainerLines()

    @property
    def is_blind(self) -> bool:
        """Whether lines enough were read, and none was of a known format."""
        return self.lines >= BLIND_LINES and not self.steps

    def observations(self, line: str) -> Iterator[StepObservation]:
        """Those that the line completes."""
        self.lines += 1
        for observation in self._observations(CONTROLS.sub("", line)):
            self.steps += 1
            yield observation

    def rest(self) -> Iterator[StepObservation]:
        """What waits for a line that will not come."""
        for observation in self._trainer.rest():
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
            self.expectation = logged_expectation(predicted, self.file)
        step = values.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or LOSS not in values:
            return
        mfu, peak = number(values, MFU), number(values, PEAK)
        yield StepObservation(
            step=step,
            step_s=number(values, STEP_S),
            tokens_per_s=number(values, TOKENS_PER_S),
            mfu=None if mfu is None else mfu / 100,
            peak_bytes=None if peak is None else round(peak),
            logged_at_s=number(values, "unix_s"),
        )


def record(line: str) -> Mapping[str, Any]:
    """A line of JSON; empty for any other."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def number(values: Mapping[str, Any], name: str) -> float | None:
    """None for what is no finite number above zero."""
    value = float_of(values.get(name))
    return value if value is not None and value > 0 else None
