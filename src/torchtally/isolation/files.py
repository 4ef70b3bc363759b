"""Opening files during a run: they are read in both trees, and written in the upper one.

They take what the native ones take and raise what those raise, about the path as the script gave
it. Other threads than the run's, and our own code (`callers`), have the native ones.
"""

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torchtally.isolation.audit import Report
from torchtally.isolation.callers import for_script, have_called, is_ours
from torchtally.isolation.naming import (
    WRITING,
    error_of,
    is_exclusive,
    is_unnamed,
    is_writing,
    naming,
    open_file_at,
    real_path_of,
)
from torchtally.isolation.natives import OPEN, OPEN_CODE, OS
from torchtally.isolation.overlay import Overlay
from torchtally.isolation.places import RealFile, parent_of
from torchtally.isolation.threads import OtherThreads
from torchtally.virtual.script_time import SCRIPT_TIME

DOWNLOADERS = tuple(
    """
    /huggingface_hub/file_download.py /huggingface_hub/_snapshot_download.py
    /huggingface_hub/utils/_xet.py /torch/hub.py /torchvision/datasets/utils.py
    /datasets/utils/file_utils.py /datasets/download/download_manager.py
    /transformers/dynamic_module_utils.py /tiktoken/load.py /nltk/downloader.py
    /kagglehub/clients.py /gdown/download.py /torch/utils/cpp_extension.py
    """.split()
)
"""Code whose new files are as good as those of a real run: downloads, and builds of source code.

They stay where they are put, so that the next run need not fetch them again. What existed before
is not changed by them either.
"""
DOWNLOAD_DEPTH = 40


class Files:
    """The stand-ins of one run, above its overlay."""

    def __init__(self, overlay: Overlay, temporary_directory: str) -> None:
        self.overlay = overlay
        self.is_over = False
        """What still has a stand-in of ours after the run has the native function in it."""
        self.are_kept_by_kernel = False
        """Whether changes that bypass the overlay are denied, in compiled code and programs too."""
        self.children: dict[str, int] = {}
        """Programs that were started, and how often."""
        self.shared: tuple[str, ...] = ()
        """Names of shared memory that was there before."""
        self.report: Report | None = None
        """Told of each refused change."""
        self._others = OtherThreads()
        self._temporary_directory = os.path.realpath(temporary_directory)

    @property
    def is_off(self) -> bool:
        """Whether the caller of the stand-in that asks has the native function."""
        return self.is_over or self._others.is_current or have_called(sys._getframe(1))

    # For the guard.

    def are_changed_by(self, frame: FrameType | None) -> bool:
        """Whether the script changes a file from this frame on."""
        return not (self.is_over or self._others.is_current or is_ours(frame))

    def owns(self, path: str) -> bool:
        return self.overlay.is_real(
            os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path)
        )

    def note_created(self, path: str) -> None:
        if not self.overlay.is_real(path):
            self.overlay.real_roots.add(path)

    def child_started(self, program: str) -> None:
        self.children[program] = self.children.get(program, 0) + 1

    # Paths.

    def logical(self, path: Any, directory: int | None = None, *, follows_last: bool = True) -> str:
        """Path as the script gave it, in its working directory or an open one, made absolute."""
        text = os.fsdecode(path)
        if not text:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not text.startswith("/"):
            base = (
                self.overlay.logical(OS.getcwd()) if directory is None else self.path_of(directory)
            )
            text = f"{base}/{text}"
        self.overlay.refresh()
        return self.overlay.resolve(text, follows_last=follows_last)

    def path_of(self, descriptor: int) -> str:
        """The logical path of an open file or directory."""
        return self.overlay.logical(real_path_of(descriptor))

    def look_up(
        self, path: Any, directory: int | None = None, *, follows_last: bool = True
    ) -> tuple[str, RealFile]:
        """Raises FileNotFoundError where the script sees nothing."""
        logical = self.logical(path, directory, follows_last=follows_last)
        place = self.overlay.find(logical)
        if place is None:
            raise error_of(errno.ENOENT, path)
        return logical, place

    def exists(self, path: str) -> bool:
        return self.overlay.find(self.logical(path)) is not None

    def is_written(self, path: str) -> bool:
        """Whether the run has a copy of a file."""
        logical = self.logical(path)
        place = self.overlay.find(logical)
        return place is not None and place.path == self.overlay.upper(logical)

    def real_path(self, path: Any, *, writes: bool = False, has_content: bool = True) -> str:
        """The path to hand to a library that opens the file by itself."""
        with naming(path):
            logical = self.logical(path)
            place = self.overlay.find(logical)
            if writes:
                if place is None and self.is_kept(logical):
                    return logical
                return self.overlay.target(logical, has_content=has_content)
            if place is not None:
                return place.path
            # A pattern may be read as well; what the run has taken away is not there.
            return self.overlay.upper(logical) if OS.access(path, os.F_OK) else os.fsdecode(path)

    # Opening.

    def open_descriptor(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        if self.is_off or (self.overlay.is_clean and not flags & WRITING):
            return int(OS.open(path, flags, mode, dir_fd=dir_fd))
        return self._open_led(path, flags, mode, dir_fd)

    def _open_led(
        self, path: Any, flags: int, mode: int = 0o666, directory: int | None = None
    ) -> int:
        with naming(path):
            follows = not flags & os.O_NOFOLLOW and not is_exclusive(flags)
            logical = self.logical(path, directory, follows_last=follows)
            place = self.overlay.find(logical)
            if not flags & WRITING or is_unnamed(flags):
                real = place.path if place is not None else self.overlay.upper(logical)
                return int(OS.open(real, flags, mode))
            if (number := open_file_at(logical)) is not None:
                return os.dup(number)  # opened anew, the user's file behind it would be cut
            real = self._writable(logical, place, flags)
            return int(self.overlay.calling(real)(OS.open, real, flags, mode))

    def _writable(self, path: str, place: RealFile | None, flags: int) -> str:
        if self.overlay.is_real(path):
            return path
        if place is None:
            if not flags & os.O_CREAT:
                raise error_of(errno.ENOENT, path)
            return path if self.is_kept(path) else self.overlay.target(path)
        if is_exclusive(flags):
            raise error_of(errno.EEXIST, path)
        if place.is_directory:
            raise error_of(errno.EISDIR, path)
        if not stat.S_ISREG(place.stat.st_mode):
            return place.path
        return self.overlay.target(path, has_content=not flags & os.O_TRUNC)

    def is_kept(self, path: str) -> bool:
        """Whether a new file is made for real: a temporary one, or by a download."""
        parent = parent_of(path)
        if not self._is_kept_by_caller(parent):
            return False
        place = self.overlay.find(parent)
        is_kept = place is not None and place.path == parent
        if is_kept:
            self.overlay.keep(path)
        return is_kept

    def _is_kept_by_caller(self, parent: str) -> bool:
        for name in files_on_stack():
            if name == tempfile.__file__:
                return parent == self._temporary_directory
            if name.endswith(DOWNLOADERS):
                return True
        return False

    def open(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
        errors: str | None = None, newline: str | None = None, closefd: bool = True,
        opener: Any = None,
    ) -> Any:  # fmt: skip
        """`builtins.open`, whose file keeps the name that it was opened by."""
        options = (mode, buffering, encoding, errors, newline, closefd)
        reads = self.overlay.is_clean and not is_writing(mode)
        if self.is_off or reads or isinstance(file, int):
            return OPEN(file, *options, opener)
        # The native `open` announces the path before it calls the opener, which leads it elsewhere.
        if opener is not None:
            return for_script(OPEN, file, *options, opener)
        return OPEN(file, *options, self.opener)

    def open_code(self, path: Any) -> Any:
        """`io.open_code`: a file that is run."""
        return OPEN_CODE(path) if self.is_off else self.open(path, "rb")

    def opener(self, path: Any, flags: int) -> int:
        """What opens a file for Python's file objects."""
        with SCRIPT_TIME.stopped():
            return self._open_led(path, flags)


def files_on_stack() -> Iterator[str]:
    """Files whose code has called, from the innermost on."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DOWNLOAD_DEPTH):
        if frame is None:
            return
        yield frame.f_code.co_filename
        frame = frame.f_back


def is_by_downloader() -> bool:
    """Whether it is for a download, or for a build."""
    return any(name.endswith(DOWNLOADERS) for name in files_on_stack())
