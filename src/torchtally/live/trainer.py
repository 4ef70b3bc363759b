"""Hugging Face's Trainer: dictionaries between the drawings of tqdm's progress bar.

    {'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}
      1%|▏         | 10/1000 [00:12<20:01,  1.21s/it]

The dictionary names no step and no time, the bar both: the steps done, and seconds per step,
smoothed. The bar is drawn again after each dictionary, with the step that the dictionary is of.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from torchtally.live.observation import StepObservation, positive

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
        self._waiting: Mapping[str, object] | None = None
        """A dictionary whose step the next drawing of the bar tells."""

    def observations(self, line: str) -> Iterator[StepObservation]:
        """Those that the line completes."""
        match = BAR.match(line)
        if match is not None:
            done, steps = int(match[1]), int(match[2])
            if self._steps is None:
                self._steps = steps
            if steps == self._steps:
                pace = positive(match[3])
                step_s = 1 / pace if pace is not None and match[4] == "it/s" else pace
                yield from self.rest(done, step_s)
            return
        values = dictionary(line)
        if ENDED in values:
            yield from self.rest()
            self._steps = None
            rate = positive(values.get("train_steps_per_second"))
            yield StepObservation(
                step_s=None if rate is None else 1 / rate,
                tokens_per_s=positive(values.get("train_tokens_per_second")),
                is_end=True,
            )
        elif "loss" in values:
            yield from self.rest()
            self._waiting = values

    def rest(
        self, step: int | None = None, step_s: float | None = None
    ) -> Iterator[StepObservation]:
        """The dictionary that waits: without a bar its step is unknown."""
        values, self._waiting = self._waiting, None
        if values is not None:
            tokens_per_s = positive(values.get("tokens_per_second"))
            yield StepObservation(step=step, step_s=step_s, tokens_per_s=tokens_per_s)


def dictionary(line: str) -> Mapping[str, object]:
    """A printed dictionary, whose numbers may be printed as texts; empty for any other line."""
    line = line.strip()
    if not (line.startswith("{'") and line.endswith("}")) or len(line) > MOST_DICTIONARY:
        return {}
    try:
        value = ast.literal_eval(line)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return value if isinstance(value, dict) else {}
