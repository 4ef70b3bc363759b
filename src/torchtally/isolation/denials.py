"""Errors by which a script learns that the kernel has denied a change.

The kernel tells nobody else. Where the interpreter announces each exception (`sys.monitoring`,
Python 3.12), those that a script catches are seen, too; that costs nothing until one is raised.
"""

import os
import re
import sys
from collections.abc import Callable

from torchtally.errors import TallyError
from torchtally.isolation.files import Files
from torchtally.isolation.natives import OS
from torchtally.isolation.places import parent_of
from torchtally.trace import EffectKind

NOTE = (
    "tally: note: the kernel keeps a simulated run, its compiled libraries and programs "
    "that it starts from changing any file but the run's own. If that is what was denied, "
    "let the script write for real: --writes real."
)
DENIED = re.compile(
    r"Permission denied|[Ee]rrno 13|os error 13|EACCES|readonly database|unable to open database"
)
"""How libraries say so."""
NAMED = re.compile(r"""['"]([^'"\s]+)['"]""")
SAYS_OTHERWISE = (LookupError, AttributeError, ImportError, TypeError, ArithmeticError)
"""Python's own errors of which thousands are raised while packages are imported."""


def is_denied(error: BaseException) -> bool:
    """Whether an error may be the kernel's answer to a change that the user may make."""
    if not DENIED.search(text_of(error)):
        return False
    path = path_of(error)
    if path is None and not isinstance(error, OSError) and "database" not in text_of(error):
        return False  # of a server: "403 Forbidden: Permission denied for https://..."
    existing = path if path is None or os.path.exists(path) else parent_of(path)
    return existing is None or not os.path.exists(existing) or os.access(existing, os.W_OK)


def text_of(error: BaseException) -> str:
    """Its message, without calling code of the script's."""
    return " ".join(arg for arg in error.args if isinstance(arg, str))


def path_of(error: BaseException) -> str | None:
    """The file that an error is about, as far as it says so."""
    name = getattr(error, "filename", None)
    if isinstance(name, (str, bytes)):
        return os.path.abspath(os.fsdecode(name))
    text = text_of(error)
    words = [named[1]] if (named := NAMED.search(text)) else text.split()
    stripped = (word.strip(",:;()'\".") for word in words if "://" not in word)
    path = next((word for word in stripped if named or "/" in word or is_there(word)), None)
    return None if path is None else os.path.abspath(path)


def is_there(name: str) -> bool:
    try:
        OS.lstat(name)
    except (OSError, ValueError):
        return False
    return True


def watch(files: Files) -> None:
    """Report, from now on, what the script is told that it may not change. Nothing before Python
    3.12, or where debuggers and profilers have taken all places.
    """
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return
    for tool in TOOLS:
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "tally")
            monitoring.register_callback(tool, monitoring.events.RAISE, raised(files))
            monitoring.set_events(tool, monitoring.events.RAISE)
            return


TOOLS = (4, 3)
"""Places of `sys.monitoring` that Python names for no kind of tool."""


def raised(files: Files) -> Callable[[object, int, BaseException], None]:
    """Is told of each exception in each frame that it passes. The note says which were seen."""

    def told(_: object, __: int, error: BaseException) -> None:
        if isinstance(error, (*SAYS_OTHERWISE, TallyError)) or not isinstance(error, Exception):
            return
        frame = sys._getframe(1)
        if NOTE in getattr(error, "__notes__", ()) or not files.are_changed_by(frame):
            return
        if is_denied(error):
            error.add_note(NOTE)
            if files.report is not None:
                name = path_of(error) or text_of(error).partition("\n")[0]
                files.report(EffectKind.REFUSED_WRITE, name, frame)

    return told
