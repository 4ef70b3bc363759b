"""Hugging Face's Trainer: dictionaries between the drawings of tqdm's progress bar.

    {'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}
      1%|▏         | 10/1000 [00:12<20:01,  1.21s/it]

The dictionary names no step and no time, the bar both: the steps done, and seconds per step,
smoothed. The bar is drawn again after each dictionary, with the step that the dictionary is of.
"""

import ast
import math
import re
from collections.abc import Iterator, Mapping

from torchtally.watch.observation import StepObservation

BAR = re.compile(
    r"^\s*\d{1,3}%\|[^|]*\|\s*(\d{1,15})/(\d{1,15}) \[[^<\]]*<[^,\]]*,\s*([\d.]+)(s/it|it/s)"
)
"""Without a description in front: those are other bars, of downloads and of data."""
MOST_DICTIONARY = 10_000
ENDED = "train_runtime"


class TrainerLines:
    """Put together from one line after the other."""

    def __init__(self) -> None:
        self._steps: int | None = None
        """That the training's bar counts to: another total is an evaluation's bar."""
        self._waiting: Mapping[str, float] | None = None
        """A dictionary whose step the next drawing of the bar tells."""

    def observations(self, line: str) -> Iterator[StepObservation]:
        """Those that the line completes."""
        match = BAR.match(line)
        if match is not None:
            yield from self._of_bar(int(match[1]), int(match[2]), float_of(match[3]), match[4])
            return
        values = dictionary(line)
        if values is None:
            return
        if ENDED in values:
            yield from self.rest()
            self._steps = None
            rate = values.get("train_steps_per_second", 0.0)
            yield StepObservation(
                step_s=1 / rate if rate > 0 else None,
                tokens_per_s=values.get("train_tokens_per_second"),
                is_end=True,
            )
        elif "loss" in values:
            yield from self.rest()
            self._waiting = values

    def rest(self) -> Iterator[StepObservation]:
        """A dictionary that no bar follows: without a bar its step is unknown."""
        if self._waiting is not None:
            yield self._observation(self._waiting, None, None)
            self._waiting = None

    def _of_bar(
        self, done: int, steps: int, number: float | None, unit: str
    ) -> Iterator[StepObservation]:
        if self._steps is None:
            self._steps = steps
        if steps != self._steps or self._waiting is None:
            return
        values, self._waiting = self._waiting, None
        step_s = None
        if number is not None and number > 0:
            step_s = number if unit == "s/it" else 1 / number
        yield self._observation(values, done, step_s)

    def _observation(
        self, values: Mapping[str, float], step: int | None, step_s: float | None
    ) -> StepObservation:
        return StepObservation(
            step=step, step_s=step_s, tokens_per_s=values.get("tokens_per_second")
        )


def dictionary(line: str) -> dict[str, float] | None:
    """The numbers of a printed dictionary, those that were printed as texts too."""
    line = line.strip()
    if not (line.startswith("{'") and line.endswith("}")) or len(line) > MOST_DICTIONARY:
        return None
    try:
        value = ast.literal_eval(line)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(value, dict):
        return None
    numbers = {key: float_of(number) for key, number in value.items() if isinstance(key, str)}
    return {key: number for key, number in numbers.items() if number is not None}


def float_of(value: object) -> float | None:
    """None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
