"""The kernel denies connections: Landlock knows TCP since its ABI 4 (Linux 6.7)."""

import ctypes
import os
import struct
import sys

# include/uapi/linux/landlock.h; the numbers of system calls are the same on all architectures.
CREATE_RULESET, RESTRICT_SELF = 444, 446
VERSION, FIRST_WITH_NETWORK = 1, 4
CONNECT_TCP = 1 << 1
PR_SET_NO_NEW_PRIVS = 38


def deny_connections() -> bool:
    """Deny TCP connections to this thread and all that it starts, for ever. False where the kernel
    cannot do so; then nothing is changed.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    zero, flags = ctypes.c_size_t(0), ctypes.c_uint32(0)
    if libc.syscall(CREATE_RULESET, None, zero, ctypes.c_uint32(VERSION)) < FIRST_WITH_NETWORK:
        return False
    attributes = struct.pack("=QQ", 0, CONNECT_TCP)
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), flags)
    if ruleset < 0:
        return False
    try:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(RESTRICT_SELF, ruleset, flags) == 0)
    finally:
        os.close(ruleset)
