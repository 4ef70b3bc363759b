"""The folder that a server works in, and its own folder within: nothing else is written.

ROOT/.tally/mcp/NAME has a server's runs and answers, the newest of each; ROOT/.tally/cache what
later servers use, too. A server that was killed leaves its folder, which the next one removes.
"""

import fcntl
import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from torchtally.errors import UsageError

FOLDER = ".tally"
MOST_RUNS = 16
MOST_ANSWERS = 16
"""That are kept: the oldest makes room."""
TRACE, BRIEF = "run.tally", "brief.json"
IGNORE = "*\n"
"""For git: the folder is ours alone."""


class ServerFolder:
    """The paths of a server, and the numbers of its runs and answers."""

    def __init__(self, root: str) -> None:
        """Makes the server's folder. Raises UsageError where that is not possible."""
        self.root = Path(os.path.realpath(root))
        shared = self.root / FOLDER
        try:
            self._check_own(shared)
            servers = shared / "mcp"
            servers.mkdir(parents=True, exist_ok=True)
            (shared / "cache").mkdir(exist_ok=True)
            write_new(shared / ".gitignore", IGNORE)
            remove_left_behind(servers)
            self.folder = servers / secrets.token_hex(8)
            for name in ("runs", "answers", "tmp"):
                (self.folder / name).mkdir(parents=True)
            self._lock = locked(self.folder)
        except OSError as error:
            raise UsageError(
                f"{shared}: cannot be used ({error.strerror}).\nGive another folder with --root."
            ) from error
        self._runs = self._answers = 0

    def _check_own(self, shared: Path) -> None:
        """Raises UsageError where a folder of ours is a link: a repository may hold one to others'
        files.
        """
        for path in (shared, shared / "mcp", shared / "cache"):
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise UsageError(f"{path}: is not a folder. Move it away, or give another --root.")

    @property
    def shared(self) -> Path:
        """All that the server and what it starts may write to."""
        return self.root / FOLDER

    def close(self) -> None:
        """Remove the server's folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)

    def environment(self) -> dict[str, str]:
        """Variables for what the server starts: caches of ours are in the workspace, others stay
        where they are and are only read.
        """
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        kept = {"HF_HOME": f"{cache}/huggingface", "TORCH_HOME": f"{cache}/torch"} | os.environ
        return kept | {
            "XDG_CACHE_HOME": str(self.shared / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }

    def inside(self, path: str) -> str:
        """The path of an existing file from the root. Raises UsageError where it is not there, or
        leads out of the folder.
        """
        here = self._from_root(path)
        if not os.path.isfile(self.root / here):
            raise UsageError(f"{path[:200]}: there is no such file in {self.root}.")
        return here

    def _from_root(self, path: str) -> str:
        """The path from the root, links followed. Raises UsageError where it leads elsewhere."""
        try:
            whole = os.path.realpath(self.root / path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path[:200]!r}: is not a path ({error}).") from error
        if os.path.commonpath([whole, self.root]) != str(self.root):
            raise UsageError(f"{path[:200]}: is not in {self.root}. Name a file in it.")
        return os.path.join(".", os.path.relpath(whole, self.root))

    def model(self, name: str) -> str:
        """A model as commands take it: what looks like a path must lie in the folder."""
        path, colon, inner = name.partition(":")
        if name.startswith("-"):
            raise UsageError(f"{name[:64]}: a model's name does not begin with '-'.")
        is_path = os.sep in path or path.endswith((".py", ".json", ".safetensors", ".gguf"))
        if is_path or path in (".", "..", "~") or os.path.lexists(self.root / path):
            return self._from_root(path) + colon + inner
        return name

    # Runs and answers ----------------------------------------------------------------------------

    def new_run(self) -> tuple[str, Path]:
        """The number of a run, and its folder. The oldest makes room."""
        self._runs += 1
        drop_oldest(self.folder / "runs", MOST_RUNS - 1)
        folder = self.folder / "runs" / str(self._runs)
        folder.mkdir()
        return str(self._runs), folder

    def runs(self) -> list[str]:
        """Numbers of the runs that have a trace, the newest last."""
        return [
            name for name in numbered(self.folder / "runs")
            if (self.folder / "runs" / name / TRACE).is_file()
        ]  # fmt: skip

    def trace(self, run: str) -> str:
        """The trace of a run by its number, or of a file in the folder. Raises UsageError."""
        if run.isascii() and run.isdigit():
            if run not in self.runs():
                kept = ", ".join(self.runs()) or "none"
                raise UsageError(f"run {run[:32]}: is not kept. Kept are: {kept}.")
            return str(self.folder / "runs" / run / TRACE)
        return self.inside(run)

    def keep_answer(self, text: str) -> str:
        """The number of an answer that is kept for a resource."""
        self._answers += 1
        drop_oldest(self.folder / "answers", MOST_ANSWERS - 1)
        (self.folder / "answers" / str(self._answers)).write_text(text, encoding="utf-8")
        return str(self._answers)

    def answers(self) -> list[str]:
        """Numbers of the answers that are kept, the newest last."""
        return numbered(self.folder / "answers")

    def answer(self, number: str) -> str:
        """An answer by its number. Raises UsageError."""
        if number not in self.answers():
            raise UsageError(f"answer {number[:32]}: is not kept.")
        return (self.folder / "answers" / number).read_text(encoding="utf-8")


def numbered(folder: Path) -> list[str]:
    """Names in a folder that are numbers, in their order."""
    with suppress(FileNotFoundError):
        names = [name for name in os.listdir(folder) if name.isascii() and name.isdigit()]
        return sorted(names, key=int)
    return []


def drop_oldest(folder: Path, most: int) -> None:
    """Remove what has the lowest numbers, until so many are left."""
    names = numbered(folder)
    for name in names[: max(0, len(names) - most)]:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def locked(folder: Path) -> int:
    """Descriptor of a server's lock, which ends with its process."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there; what is, a link too, stays."""
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)


def remove_left_behind(servers: Path) -> None:
    """Remove the folders of servers that have ended: those with a server's name and lock."""
    for folder in servers.iterdir():
        is_ours = re.fullmatch(r"[0-9a-f]{16}", folder.name) and (folder / "lock").is_file()
        if not is_ours or folder.is_symlink() or (folder / "lock").is_symlink():
            continue
        try:
            lock = locked(folder)
        except BlockingIOError:
            continue
        except OSError:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
