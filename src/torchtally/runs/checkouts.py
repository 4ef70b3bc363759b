"""States of a git repository in temporary folders, for running a script as it was.

Each is a worktree of git, detached: the user's own files, index and branches stay as they are.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from torchtally.errors import UsageError

PREFIX = "tally-diff-"
"""Of the folder, with the process that made it behind it."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that would end a process without its `finally`."""
SHORT = 8


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """A folder that holds a commit, or the working tree as it is."""

    name: str
    """The commit as the user called it, with its number; "working tree"."""
    top: str
    """The folder that holds it."""
    folder: str
    """Within it, the one that the user is in."""


@dataclass(frozen=True, slots=True)
class Repository:
    """The user's, by the folder that the command runs in."""

    top: str
    prefix: str
    """From there to where the user is; "" at the top."""

    @property
    def working_tree(self) -> RepositoryState:
        return RepositoryState("working tree", self.top, os.path.join(self.top, self.prefix))

    def commit(self, name: str) -> str:
        """Its number. Raises UsageError for one that there is not."""
        done = git(
            self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        )
        if done.returncode:
            raise UsageError(
                f"{name}: no such commit in {self.top}. `git log --oneline` lists them."
            )
        return done.stdout.strip()

    @contextmanager
    def state(self, name: str) -> Iterator[RepositoryState]:
        """The commit in a folder of its own, which is removed however the block ends.

        SIGTERM and SIGHUP end the block as Ctrl-C does. A folder that a killed process left is
        removed first. Raises UsageError for a commit that there is not.
        """
        number = self.commit(name)
        self.remove_leftovers()
        folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
        place = os.path.join(os.path.realpath(folder), os.path.basename(self.top))
        with interrupting():
            try:
                done = git(self.top, "worktree", "add", "--quiet", "--detach", place, number)
                if done.returncode:
                    raise UsageError(f"{name}: git cannot check it out.\n{done.stderr.strip()}")
                shown = number[:SHORT] if number.startswith(name) else f"{name} ({number[:SHORT]})"
                yield RepositoryState(shown, place, os.path.join(place, self.prefix))
            finally:
                self._remove(place)
                shutil.rmtree(folder, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Worktrees of processes that are no more."""
        listed = git(self.top, "worktree", "list", "--porcelain").stdout
        for line in listed.splitlines():
            match = re.fullmatch(rf"worktree (.*/{PREFIX}(\d+)-[^/]*/[^/]*)", line)
            if match and not is_running(int(match[2])):
                self._remove(match[1])
                shutil.rmtree(os.path.dirname(match[1]), ignore_errors=True)

    def _remove(self, place: str) -> None:
        git(self.top, "worktree", "remove", "--force", place)
        shutil.rmtree(place, ignore_errors=True)
        git(self.top, "worktree", "prune")


def repository() -> Repository:
    """Repository of the folder that the process runs in. Raises UsageError where there is none."""
    done = git(os.getcwd(), "rev-parse", "--show-toplevel", "--show-prefix")
    if done.returncode:
        raise UsageError(
            f"{os.getcwd()} is not in a git repository.\n"
            "Run this in one, or compare two traces: tally diff before.tally after.tally"
        )
    top, prefix, *_ = done.stdout.split("\n")
    return Repository(top, prefix.rstrip("/"))


def git(folder: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of git, of this folder alone. Raises UsageError where there is no git."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_DIR")}
    try:
        return subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, check=False,
            env=own | {"LC_ALL": "C"}, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise UsageError("There is no git on the PATH.") from None


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def interrupting() -> Iterator[None]:
    """Signals that would end the process are raised as KeyboardInterrupt, and sent again after."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:  # a second one must not end the cleaning up
            raise KeyboardInterrupt

    former = {}
    with suppress(ValueError):  # not in the main thread: nothing to replace
        former = {number: signal.signal(number, note) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if received:
            os.kill(os.getpid(), received[0])
