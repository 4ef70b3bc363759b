"""All logs of a run combined. A log that fails after the start never ends the training."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    step to be done again: its records and later ones are invalidated. `replaces` drops an existing
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
        opened: list[_Guarded] = []
        for name in names:
            log = open_service(name, folder, header, project, resumed_at)
            opened.append(_Guarded(name, log, say))
            stack.callback(opened[-1].close)
        # Last: if another log fails to start, the folder is still unused.
        try:
            lines.begin(header)
        except OSError as error:
            raise UsageError(f"{lines.path}: cannot be written ({error.strerror}).") from error
        yield _Together(lines, opened, say)


class _Guarded:
    """The log of another package, dropped when it fails."""

    def __init__(self, name: str, log: TensorBoard | Hosted, say: Say) -> None:
        self._name, self._log, self._say = name, log, say
        self._has_failed = False

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        if not self._has_failed:
            self._try(lambda: self._log.write(step, values), f"from step {step} on")

    def close(self) -> None:
        self._try(self._log.close, "at the end")

    def _try(self, action: Callable[[], None], when: str) -> None:
        try:
            action()
        except Exception as error:  # no log is worth a training
            if not self._has_failed:
                what = " ".join(f"{type(error).__name__}: {error}".split())
                self._say(f"{self._name} failed and is dropped {when} ({what}).")
            self._has_failed = True


class _Together:
    def __init__(self, lines: JsonLines, others: Sequence[_Guarded], say: Say) -> None:
        self._lines, self._others, self._say = lines, others, say
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
        for log in self._others:
            log.write(step, values)


def _to_stderr(text: str) -> None:
    print(f"tally: {text}", file=sys.stderr, flush=True)
