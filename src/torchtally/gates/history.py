"""What a file of budgets said in each commit of its repository."""

import os
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.gates.budget import Budget, BudgetFile, budgets_of

MOST_COMMITS = 1000
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class BudgetCommit:
    """One commit, and the budgets that the file has in it."""

    commit: str
    date: str
    """Of its author, as 2026-11-23."""
    subject: str
    budgets: tuple[Budget, ...]

    def find(self, run: str, gpu: str) -> Budget | None:
        return BudgetFile(self.commit, self.budgets).find(run, gpu)


def history(path: str) -> list[BudgetCommit]:
    """The commits that changed the file, oldest first; none outside of a repository of git.

    Versions that cannot be read as budgets are left out. Raises UsageError where git fails.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if _git(folder, "rev-parse", "--is-inside-work-tree") is None:
        return []
    form = "%H%x00%as%x00%s"
    log = _git(folder, "log", f"-{MOST_COMMITS}", f"--format={form}", "--", f"./{name}")
    commits = []
    for line in (log or "").splitlines():
        commit, date, subject = line.split("\0", 2)
        text = _git(folder, "show", f"{commit}:./{name}")
        budgets = None if text is None else _read(text, path)
        if budgets is not None:
            commits.append(BudgetCommit(commit[:8], date, subject, budgets))
    return commits[::-1]


def _read(text: str, path: str) -> tuple[Budget, ...] | None:
    try:
        return budgets_of(tomllib.loads(text), path)
    except (ValueError, RecursionError, UsageError):
        return None


def _git(folder: str, *arguments: Sequence[str] | str) -> str | None:
    """What git prints; None where it fails: no repository, or no such version."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *map(str, arguments)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git {arguments[0]} did not finish within {TIMEOUT_S} s.") from None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
