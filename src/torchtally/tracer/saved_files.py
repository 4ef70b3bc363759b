"""Files that a script saves tensors to."""

import os
from typing import Any

from torchtally.trace import FileId


def identify(file: Any) -> tuple[FileId | None, str]:
    """Identity of a path or an open file, and its absolute path or "".

    A buffer in memory has neither.
    """
    name = getattr(file, "name", file)
    if hasattr(file, "fileno"):
        try:
            file = file.fileno()
        except OSError:  # io.BytesIO: UnsupportedOperation
            return None, ""
    if not isinstance(file, (str, bytes, os.PathLike, int)):
        return None, ""
    status = os.stat(file)
    path = "" if isinstance(name, int) else os.path.abspath(os.fsdecode(name))
    return (status.st_dev, status.st_ino), path
