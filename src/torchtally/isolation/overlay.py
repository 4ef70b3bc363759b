"""The user's files as a script sees them: what exists, under what the run has written.

Two trees lie above each other, as in a union mount. The *lower* one is the file system: it is read
and never changed. The *upper* one is a folder of the run: every file that the script makes, and a
copy of every file that it opens for writing, is there under its own path. A path that the script
removes or renames has another lower one from then on, or none (`lowers`).

    logical path     as the script says it, absolute, symbolic links resolved
    upper path       where its copy is, or would be: FOLDER/x for START/x, FOLDER/@root/y for /y
    lower path       what lies below: the path itself, where it was renamed from, or nothing
"""

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

from torchtally.isolation.journal import JOURNAL, Journal, new_folder
from torchtally.isolation.keeper import Keeper
from torchtally.isolation.kernel import can_move
from torchtally.isolation.naming import is_open_file
from torchtally.isolation.natives import OS
from torchtally.isolation.places import RealFile, copy_file, is_directory, parent_of, place_at

ROOT = "@root"
"""Below the folder: what is not below the directory in which the run started."""
RESERVED = (ROOT, JOURNAL)
LINK_LIMIT = 40
"""As Linux: more symbolic links in one path are an error."""
SYSTEM = ("/proc/", "/sys/", "/dev/")
SHARED_MEMORY = "/dev/shm/"
"""Below a directory of the system, but with files of the user's."""


class Overlay:
    """Both trees of one run. All paths given here are logical ones."""

    def __init__(self, folder: str, start: str, *, is_new: bool = True) -> None:
        """`folder` becomes the upper tree; `start` is the directory in which the run starts.

        Where another run is using the folder, one with a number in its name is taken. `is_new`:
        else the folder is that of this run, which another process has begun.
        """
        if is_new:
            folder, self.journal = free_folder(os.path.abspath(folder))
        else:
            self.journal = Journal(folder, is_new=False)
        self.folder = os.path.realpath(folder)
        self.start = os.path.realpath(start)
        self.lowers: dict[str, str | None] = {}
        """Paths that the run has removed or renamed, and what lies below them now."""
        self.real_roots: set[str] = set()
        """What the run has made for real: temporary files and downloads."""
        self._kept: set[str] = set()
        """Those of them that the keeper alone can make."""
        self.keeper: Keeper | None = None
        """Of a process that the kernel restricts."""
        self.is_clean = is_new
        """Nothing was written yet: the script sees what exists."""
        self.lock = threading.RLock()
        self._plain: set[str] = set()
        """Logical paths that are no links, so that directories need not be looked at again."""
        self._beside = self.start.rstrip("/") + "/"

    # Paths.

    def upper(self, path: str) -> str:
        if path == self.start:
            return self.folder
        if path.startswith(self._beside):
            rest = path[len(self._beside) :]
            if rest.partition("/")[0] not in RESERVED:
                return f"{self.folder}/{rest}"
        return f"{self.folder}/{ROOT}{path if path != '/' else ''}"

    def logical(self, real: str) -> str:
        """The path whose upper or lower one this is."""
        if real == self.folder:
            return self.start
        if not real.startswith(self.folder + "/"):
            for path, lower in self.lowers.items():
                if lower is not None and f"{real}/".startswith(f"{lower}/"):
                    return path + real[len(lower) :]
            return real
        rest = real[len(self.folder) + 1 :]
        if rest == ROOT or rest.startswith(ROOT + "/"):
            return rest[len(ROOT) :] or "/"
        return self._beside + rest

    def lower(self, path: str) -> str | None:
        """What lies below a path; None where the run has taken it away."""
        lowers = self.lowers
        above = path
        while lowers:
            if above in lowers:
                lower = lowers[above]
                return None if lower is None else lower + path[len(above) :]
            if above == "/":
                break
            above = parent_of(above)
        return path

    def is_real(self, path: str) -> bool:
        """Whether writes there reach the file system: devices, temporary files, the run's own."""
        if path.startswith(SYSTEM) and not path.startswith(SHARED_MEMORY):
            return True
        is_own = path == self.folder or path.startswith(self.folder + "/")
        return is_own or is_below(path, self.real_roots)

    def keep(self, path: str) -> None:
        """Let what is made at a path, and below it, be made for real."""
        self.real_roots.add(path)
        self._kept.add(path)

    def calling(self, path: str | int, *, everywhere: bool = False) -> Callable[..., Any]:
        """What calls a native function that changes what is at a path, or an open file: the keeper
        where the kernel keeps this thread from it, by the place or (`everywhere`) by the function.
        """
        if self.keeper is None or (isinstance(path, str) and path.startswith(SYSTEM)):
            return call
        is_free = not everywhere and (isinstance(path, int) or not is_below(path, self._kept))
        return call if is_free else self.keeper.call

    def resolve(self, path: str, *, follows_last: bool = True) -> str:
        """The logical path of an absolute one. Raises OSError for a loop of links."""
        head, _, last = path.rpartition("/")
        is_plain = head in self._plain and last not in ("", ".", "..")
        if is_plain and (not follows_last or self._link(path) is None):
            return path
        resolved = self._resolve(path, follows_last=follows_last)
        self._plain.add(parent_of(resolved))
        return resolved

    def _resolve(self, path: str, *, follows_last: bool) -> str:
        pending = path.split("/")[::-1]
        resolved, links = "", 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                resolved = resolved.rpartition("/")[0]
                continue
            candidate = f"{resolved}/{part}"
            target = self._link(candidate) if follows_last or any(pending) else None
            if target is None:
                resolved = candidate
                continue
            links += 1
            if links > LINK_LIMIT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                resolved = ""
            pending.extend(target.split("/")[::-1])
        return resolved or "/"

    def forget_links(self) -> None:
        """Something may be a link now that was none before."""
        self._plain.clear()

    def _link(self, path: str) -> str | None:
        """The text of a symbolic link; None where there is none."""
        if is_open_file(path):
            return None
        try:
            return str(OS.readlink(self.upper(path)))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
        lower = self.lower(path)
        if lower is None:
            return None
        try:
            return str(OS.readlink(lower))
        except OSError:
            return None

    # What is there.

    def refresh(self) -> None:
        """Learn what processes that the run has forked have removed and renamed."""
        if self.journal.has_news:
            with self.lock:
                for path, lower in self.journal.news():
                    self._place(path, lower)

    def find(self, path: str) -> RealFile | None:
        """File of a path, not following a link at its end; None where nothing is.

        A directory that is in both trees is found in the lower one.
        """
        if self.is_real(path):
            return RealFile(path, OS.stat(path)) if is_open_file(path) else place_at(path)
        upper, lower = place_at(self.upper(path)), self.lower(path)
        if upper is not None and not upper.is_directory:
            return upper
        below = None if lower is None else place_at(lower)
        if upper is None or (below is not None and below.is_directory):
            return below
        return upper

    def names(self, path: str) -> list[str]:
        """What is in a directory. The run's own folder is not shown."""
        entries: dict[str, None] = {}
        lower = self.lower(path)
        if lower is not None and is_directory(lower):
            entries |= dict.fromkeys(OS.listdir(lower))
        if not self.is_real(path):
            prefix = path.rstrip("/") + "/"
            for moved, below in list(self.lowers.items()):
                name = moved[len(prefix) :]
                if not moved.startswith(prefix) or "/" in name:
                    continue
                entries.pop(name, None)
                if below is not None and place_at(below) is not None:
                    entries[name] = None
            upper = self.upper(path)
            if is_directory(upper):
                hidden = RESERVED if upper == self.folder else ()
                names = (name for name in OS.listdir(upper) if name not in hidden)
                entries |= dict.fromkeys(names)
        if path == parent_of(self.folder):
            entries.pop(os.path.basename(self.folder), None)
        return list(entries)

    # Changes.

    def target(self, path: str, *, has_content: bool = True) -> str:
        """The path to write to: an existing file's copy, or where a new one goes.

        `has_content`: the copy begins with what the file holds. Raises FileNotFoundError or
        NotADirectoryError where the directory is not there.
        """
        if self.is_real(path):
            return path
        with self.lock:
            self.is_clean = False
            upper, place = self.upper(path), self.find(path)
            if place is None:
                self.make_parent(path)
            elif place.path != upper:
                if place.is_directory:
                    self._shadow(path)
                else:
                    self._shadow(parent_of(path))
                    copy_file(place, upper, self._set_times, has_content=has_content)
            return upper

    def make_parent(self, path: str) -> None:
        """Have the directory of a new file in the upper tree."""
        parent = parent_of(path)
        place = self.find(parent)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not place.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._shadow(parent)

    def _shadow(self, directory: str) -> None:
        """A directory in the upper tree for one that is in the lower."""
        self.is_clean = False
        upper = self.upper(directory)
        if is_directory(upper):
            return
        if directory != "/":
            self._shadow(parent_of(directory))
        OS.mkdir(upper)

    def remove(self, path: str) -> None:
        """Take a file, a link or an empty directory away."""
        with self.lock:
            self.is_clean = False
            self.forget_links()
            upper = self.upper(path)
            place = place_at(upper)
            if place is not None and place.is_directory:
                shutil.rmtree(upper)  # an empty one may have directories whose files are hidden
            elif place is not None:
                OS.unlink(upper)
            self._take_away(path)

    def _take_away(self, path: str) -> None:
        lower = self.lower(path)
        if lower is not None and place_at(lower) is not None:
            self._record(path, None)

    def _record(self, path: str, lower: str | None) -> None:
        self.journal.append(path, lower)
        self.refresh()

    def _place(self, path: str, lower: str | None) -> None:
        """A path has another lower one, and so has all below it."""
        prefix = path + "/"
        for below in [known for known in self.lowers if known.startswith(prefix)]:
            del self.lowers[below]
        self.lowers[path] = lower
        self.is_clean = False
        self.forget_links()

    def rename(self, source: str, target: str) -> None:
        """Renames as `os.replace`, between any of the two trees and the real files of the run."""
        with self.lock:
            place = self.find(source)
            assert place is not None
            self.forget_links()
            if self.is_real(source) and self.is_real(target):
                self.calling(target, everywhere=True)(OS.replace, source, target)
            elif self.is_real(source) or self.is_real(target):
                self._carry(place, source, target)
            else:
                self._rename(source, target)

    def _carry(self, place: RealFile, source: str, target: str) -> None:
        """Moves or copies a file between what is real and what is not."""
        goal = target
        if not self.is_real(target):
            self.make_parent(target)
            goal = self.upper(target)
        before = self.find(target)
        if before is not None and not self.is_real(target):
            self.remove(target)
        elif before is not None and before.is_directory:
            self.calling(target)(OS.rmdir, target)
        if self.is_real(source):
            self.calling(goal, everywhere=True)(shutil.move, place.path, goal)
        else:
            self.calling(goal, everywhere=True)(self._copy, source, goal)
            self.remove(source)

    def _copy(self, path: str, goal: str) -> None:
        """A file, or a directory with all that the script sees in it."""
        place = self.find(path)
        if place is not None and place.is_directory:
            OS.mkdir(goal)
            for name in self.names(path):
                self._copy(f"{path}/{name}", f"{goal}/{name}")
        elif place is not None:
            copy_file(place, goal, self._set_times)

    def _set_times(self, path: str, ns: tuple[int, int]) -> None:
        """The kernel lets the keeper alone do so."""
        self.calling(path, everywhere=True)(OS.utime, path, ns=ns)

    def _rename(self, source: str, target: str) -> None:
        self.make_parent(target)
        lower = self.lower(source)
        if lower is not None and place_at(lower) is None:
            lower = None
        inner = self._moved_below(source, target)
        if self.find(target) is not None:
            self.remove(target)
        upper = self.upper(source)
        is_written = place_at(upper) is not None
        if is_written:
            is_free = self.keeper is None or can_move()
            self.calling(upper, everywhere=not is_free)(OS.rename, upper, self.upper(target))
        hides = self.lower(target) is not None and place_at(self.lower(target) or "") is not None
        if lower is not None or hides or inner:
            self._record(target, lower)
            for below, lower_below in inner:
                self._record(below, lower_below)
        self._take_away(source)

    def _moved_below(self, source: str, target: str) -> list[tuple[str, str | None]]:
        """What was taken away or renamed below a directory, by its new path."""
        prefix = source + "/"
        return [
            (target + path[len(source) :], lower)
            for path, lower in list(self.lowers.items())
            if path.startswith(prefix)
        ]

    def enter_child(self) -> None:
        """Frees, in a forked process, what other threads held at the fork."""
        self.lock = threading.RLock()
        self.journal.reopen()

    def close(self) -> None:
        self.journal.close()


def is_below(path: str, roots: set[str]) -> bool:
    """Whether a path is one of these, or in one."""
    while roots and path not in roots:
        if path == "/":
            return False
        path = parent_of(path)
    return bool(roots)


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def free_folder(folder: str) -> tuple[str, Journal]:
    """The folder, or the first with a number behind its name that no run is using."""
    for number in itertools.count(1):
        name = folder if number == 1 else f"{folder}.{number}"
        journal = new_folder(name)
        if journal is not None:
            return name, journal
    raise AssertionError("there are always more numbers")
