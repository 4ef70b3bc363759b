"""File systems of a test's own, in a child with mounts of its own: they go when it goes."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 1, 32, 16384, 1 << 18


def has_own_mounts() -> bool:
    """From now on mounts of this process are nobody else's; False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except PermissionError:
            return False
    return bool(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0)


def mount(path: Path, options: str, flags: int = 0) -> bool:
    """A tmpfs, or another size or mode of the one that is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (b"tmpfs", str(path).encode(), b"tmpfs", flags, options.encode())
    return bool(libc.mount(*arguments) == 0)
