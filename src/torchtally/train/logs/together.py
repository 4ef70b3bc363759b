"""All logs of a run combined. A log that fails after the start never ends the training."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchtally.checkpoints.plain import Say
from torchtally.errors import UsageError, check_choice
from torchtally.train.logs.jsonl import JsonLines
from torchtally.train.logs.log import Log, LogValue, RunHeader
from torchtally.train.logs.services import ADVICE, Hosted, TensorBoard, open_service


@contextmanager
def logs(
    folder: Path | str,
    header: RunHeader,
    *,
    to: Iterable[str] = (),
    project: str = "torchtally",
    resumed_at: int | None = None,
    replaces: bool = False,
    say: Say | None = None,
) -> Iterator[Log]:
    """FOLDER/log.jsonl and the logs named in `to`, opened, and closed at the end.

    wandb and trackio put the run into `project`, under the folder's name. `resumed_at` is the first
    step to be repeated: its records and later ones are invalidated. `replaces` drops an existing
    log of another run. `say` receives errors that do not end the training; None: stderr.

    Raises UsageError if a log cannot start: package not installed, no login, a folder with the log
    of another run. After the start no log raises: log.jsonl is retried with each record, others are
    dropped after their first failure, and each failure is reported once.
    """
    folder, say, names = Path(folder), say or _to_stderr, tuple(dict.fromkeys(to))
    for name in names:
        check_choice("log.to: unknown log", name, ADVICE)
    with ExitStack() as stack:
        lines = JsonLines(folder, resumed_at=resumed_at, replaces=replaces, say=say)
        stack.callback(lines.close)
        together = _Together(lines, say)
        stack.callback(together.close)
        for name in names:
            together.others[name] = open_service(name, folder, header, project, resumed_at)
        # Last: if another log fails to start, the folder is still unused.
        try:
            lines.begin(header)
        except OSError as error:
            raise UsageError(f"{lines.path}: cannot be written ({error.strerror}).") from error
        yield together


class _Together:
    """log.jsonl, and logs of other packages, each of which is dropped when it fails."""

    def __init__(self, lines: JsonLines, say: Say) -> None:
        self._lines, self._say = lines, say
        self.others: dict[str, TensorBoard | Hosted] = {}
        self._has_lost = False

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        try:
            self._lines.write(step, values)
        except OSError as error:
            if not self._has_lost:
                self._say(
                    f"{self._lines.path}: step {step} is not logged ({error.strerror}). Later "
                    "steps are retried without further messages."
                )
            self._has_lost = True
        self._each(lambda log: log.write(step, values), f"from step {step} on")

    def close(self) -> None:
        self._each(lambda log: log.close(), "at the end")

    def _each(self, action: Callable[[TensorBoard | Hosted], None], when: str) -> None:
        for name, log in [*self.others.items()]:
            try:
                action(log)
            except Exception as error:  # no log is worth a training
                what = " ".join(f"{type(error).__name__}: {error}".split())
                self._say(f"{name} failed and is dropped {when} ({what}).")
                del self.others[name]


def _to_stderr(text: str) -> None:
    print(f"tally: {text}", file=sys.stderr, flush=True)
