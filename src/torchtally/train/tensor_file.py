"""A safetensors file of tensors, readable by those who may read the user's other files."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write them whole or not at all. Raises OSError or safetensors.SafetensorError."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    # The package writes to a temporary file that its owner alone may read (tempfile, mode 0o600),
    # and renames it. What a new file's mode is (0o666 less the umask) is read from one: reading
    # the umask means changing it, which other threads would see.
    unfinished.unlink(missing_ok=True)
    with unfinished.open("xb") as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
    save_file(dict(tensors), unfinished, metadata=metadata)
    unfinished.chmod(mode)
    os.replace(unfinished, path)
