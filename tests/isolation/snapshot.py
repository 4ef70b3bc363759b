"""What a directory tree is, to find out whether anything in it was changed."""

import hashlib
import os
from pathlib import Path

Snapshot = dict[str, tuple[object, ...]]


def snapshot(root: Path, *, without: tuple[str, ...] = ()) -> Snapshot:
    """Content, inode, mode, times and attributes of files; inode and mode of directories."""
    state: Snapshot = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.startswith(without):
            continue
        status = path.lstat()
        if path.is_symlink():
            state[name] = ("link", os.readlink(path), status.st_ino)
        elif path.is_dir():
            state[name] = ("directory", status.st_ino, status.st_mode)
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            attributes = os.listxattr(path) if hasattr(os, "listxattr") else []
            state[name] = (digest, status.st_ino, status.st_mode, status.st_mtime_ns, *attributes)
    return state
