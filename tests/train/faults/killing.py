"""Kills `tally data prepare` again and again, and judges what each kill leaves behind.

    python -m tests.train.faults.killing FOLDER [same-names]

A process of its own, since it forks: it has no threads of PyTorch. What is whole is judged by
sha256 and by the text that comes out again, and not by the code that training reads with.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchtally.errors import UsageError
from torchtally.train.data import prepare as prepare_module
from torchtally.train.data import writer
from torchtally.train.data.description import NAME
from torchtally.train.data.files import token_files
from torchtally.train.data.prepare import PrepareRequest, prepare

RANDOM_KILLS = 20
CALLS = ("open", "replace", "fsync", "unlink", "listdir", "lstat")
"""All that changes a folder, and some that do not."""


def text_in(folder: Path) -> bytes | None:
    """The text that a whole data set of bytes is of; None where there is none."""
    if not (folder / NAME).exists():
        return None
    document = json.loads((folder / NAME).read_bytes())
    ids: list[int] = []
    for split in ("train", "validation"):
        for shard in document["splits"][split]["shards"]:
            content = (folder / shard["name"]).read_bytes()
            assert len(content) == shard["bytes"], shard
            assert hashlib.sha256(content).hexdigest() == shard["sha256"], shard
            ids += np.frombuffer(content, "<u2", offset=1024).tolist()
    return bytes(token for token in ids if token < 256)


def files_of(folder: Path) -> set[str]:
    """Those that its description names, and itself."""
    splits = json.loads((folder / NAME).read_bytes())["splits"].values()
    return {NAME, *(shard["name"] for split in splits for shard in split["shards"])}


def forked(work: Callable[[], Any]) -> int:
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    return process


def status_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def dying_at_call(number: int, work: Callable[[], Any]) -> Callable[[], None]:
    """Runs `work` until the so many-th of CALLS, which is not made."""

    def doomed() -> None:
        calls = iter(range(number))

        def dying(native: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                if next(calls, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return native(*args, **options)

            return call

        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        work()

    return doomed


def killed_at_call(number: int, work: Callable[[], Any]) -> int:
    return status_of(forked(dying_at_call(number, work)))


class Trial:
    """A folder with a data set of one text, or with nothing, in which another is prepared."""

    def __init__(self, here: Path, *, lines: int, has_old: bool) -> None:
        self.out = here / "out"
        self.old, self.new = here / "old.txt", here / "new.txt"
        self.old.write_bytes(b"the old text of it\n" * lines)
        self.new.write_bytes(b"and a newer one\n" * lines)
        self.has_old = has_old
        self.shard_tokens = lines * 5

    def prepare(self, text: Path) -> None:
        out, shard_tokens = str(self.out), self.shard_tokens
        prepare(PrepareRequest((str(text),), out, shard_tokens=shard_tokens, is_overwriting=True))

    def kill(self, how: Callable[[Callable[[], None]], int]) -> tuple[int, str]:
        """(exit status, which data set is there): "old", "new" or "none". All is whole."""
        shutil.rmtree(self.out, ignore_errors=True)
        if self.has_old:
            self.prepare(self.old)
        status = how(lambda: self.prepare(self.new))
        reached = self.data_set()
        self.prepare(self.new)  # it goes on from whatever was left, and nothing is left over
        assert self.data_set() == "new"
        assert set(os.listdir(self.out)) == files_of(self.out)
        return status, reached

    def data_set(self) -> str:
        text = text_in(self.out)
        try:
            is_taken = bool(token_files([str(self.out)]))
        except UsageError:
            is_taken = False
        assert is_taken == (text is not None)
        if text is None:
            return "none"
        return {self.old.read_bytes(): "old", self.new.read_bytes(): "new"}[text]


def at_every_call(trial: Trial) -> list[str]:
    """What is there after a kill at each of the calls, in their order."""
    reached: list[str] = []
    while True:
        status, now = trial.kill(partial(killed_at_call, len(reached)))
        if status == 0:
            return reached
        assert status == -signal.SIGKILL
        reached.append(now)


def at_random_times(trial: Trial) -> list[tuple[int, str]]:
    began_s = time.monotonic()
    trial.prepare(trial.new)
    took_s = time.monotonic() - began_s
    draw = random.Random(0)

    def how(work: Callable[[], None]) -> int:
        process = forked(work)
        time.sleep(draw.uniform(0, took_s))
        os.kill(process, signal.SIGKILL)
        return status_of(process)

    return [trial.kill(how) for _ in range(RANDOM_KILLS)]


def main(here: Path) -> None:
    kills = at_random_times(Trial(here, lines=4000, has_old=True))
    report = {
        "old": at_every_call(Trial(here, lines=60, has_old=True)),
        "none": at_every_call(Trial(here, lines=60, has_old=False)),
        "random": kills,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    if sys.argv[2:] == ["same-names"]:  # what the checks above are there to see
        setattr(prepare_module, "free_series", lambda _: "")  # noqa: B010
        writer.NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    main(Path(sys.argv[1]))
