"""What to run, and its file: read within a bound, and refused where it cannot be a script."""

import os
import shlex
import stat
import sys
import sysconfig
import zipfile
from contextlib import suppress
from dataclasses import dataclass

from torchtally.errors import ScriptError

MOST_BYTES = 64_000_000
"""Of source, of compiled code or of a notebook with its pictures."""
MOST_SHEBANG_BYTES = 4096
MAIN = "__main__.py"


@dataclass(frozen=True, slots=True)
class Script:
    """What to run, and its own arguments.

    A file: Python source, compiled code, a notebook, or an application; with `is_module` a module's
    dotted name; with `text` that source, whose target is "-c" or "-" (stdin).
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    text: str | None = None

    def __str__(self) -> str:
        """Text as a person would type it after `python`, without the text."""
        return shlex.join([*(["-m"] if self.is_module else []), self.target, *self.arguments])

    @property
    def is_file(self) -> bool:
        return not self.is_module and self.text is None

    @property
    def is_application(self) -> bool:
        """A directory or zip file, with a `__main__.py` in it."""
        return self.is_file and (os.path.isdir(self.target) or is_zip(self.target))

    @property
    def is_notebook(self) -> bool:
        return self.is_file and self.target.endswith(".ipynb")

    @property
    def path_entry(self) -> str:
        """What Python puts first on `sys.path`."""
        if self.text is not None:
            return ""
        if self.is_module:
            return os.getcwd()
        if self.is_application:
            return os.path.abspath(self.target)
        return os.path.dirname(os.path.realpath(self.target))


def path_of_command(name: str) -> str:
    """The file of a command that a package has installed beside this Python (`llamafactory-cli`),
    where no file is called so; any other name as it is.
    """
    if os.path.dirname(name) or os.path.exists(name):
        return name
    for folder in command_folders():
        path = os.path.join(folder, name)
        with suppress(OSError), open(path, "rb") as file:
            first = file.readline(MOST_SHEBANG_BYTES)
            if first.startswith(b"#!") and b"python" in first:
                return path
    return name


def command_folders() -> tuple[str, str]:
    """Folders into which this environment installs commands."""
    return sysconfig.get_path("scripts"), os.path.dirname(sys.executable)


def check_file(path: str) -> None:
    """Raise ScriptError for what is not a script, without reading it.

    A pipe is left alone: what is read from it once is gone.
    """
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, MAIN)):
            raise ScriptError(
                f"{path} is a directory without a {MAIN}.\n"
                "Give the script in it that should be run."
            )
        return
    if not os.path.exists(path):
        raise ScriptError(
            f"{path}: no such file.\nGive the path of the training script: "
            "`tally run path/to/train.py --gpu NAME`."
        )
    if not os.access(path, os.R_OK):
        raise ScriptError(f"{path}: no permission to read it.")
    status = os.stat(path)
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise ScriptError(
            f"{path} is a device, not a script.\nCode from a terminal: `tally run -`."
        )
    if is_zip(path):
        if MAIN not in names_in(path):
            raise ScriptError(
                f"{path} is a zip file without a {MAIN}, as a checkpoint is, and not a script.\n"
                "Give the path of the training script."
            )
    elif stat.S_ISREG(status.st_mode) and status.st_size > MOST_BYTES:
        raise too_long(path)


def is_zip(path: str) -> bool:
    """A regular file that ends as a zip file does: of a device, the end is never found."""
    return os.path.isfile(path) and zipfile.is_zipfile(path)


def names_in(path: str) -> list[str]:
    """Names of the files in a zip file; none in a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []


def read_script(path: str) -> bytes:
    """All of the file, or of a pipe. Raises ScriptError for one of more than MOST_BYTES."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise too_long(path)
    return content


def read_stdin() -> str:
    """All of stdin, within the same bound."""
    text = sys.stdin.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise too_long("stdin")
    return text


def too_long(name: str) -> ScriptError:
    return ScriptError(
        f"{name} holds more than {MOST_BYTES // 10**6} MB, too much for a script.\n"
        "Give the path of the training script."
    )
