"""What the kernel enforces: from `restrict` on, a thread can change files of a few places only.

Landlock (Linux 5.13, no rights needed) holds for the thread that calls it and for all that it
starts, threads and programs alike, for ever; threads that ran before are free. It knows neither
modes nor times, owners, attributes or flags: there is a filter of system calls (seccomp). A change
of modes, owners and times succeeds without being made: an error would end `tar` and `cp -p` where
they unpack into the run's own folder, for a mode that nobody reads.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

# include/uapi/linux/landlock.h; the numbers of system calls are the same on all architectures.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, BENEATH = 1, 1
WRITE_FILE = 1 << 1
TRUNCATE = 1 << 14
REMOVE_FILE, MAKE_REG = 1 << 5, 1 << 8
MAKE_DIR = 1 << 7
CHANGES = WRITE_FILE | (sum(1 << bit for bit in range(4, 13)) & ~MAKE_DIR)
"""Writing; removing and making whatever a directory can hold, but a directory: a new one harms
nothing, and programs that a script starts make those in which it then writes.
"""
REFER = 1 << 13
"""Moving files between directories: known since ABI 2, and denied where it is not handled."""
SINCE = {REFER: 2, TRUNCATE: 3}
CONNECT_TCP, FIRST_WITH_NETWORK = 1 << 1, 4

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As AUDIT_ARCH_* of include/uapi/linux/audit.h."""
UNMADE = {
    "x86_64": (90, 91, 92, 93, 94, 132, 235, 260, 261, 268, 280, 452),
    "aarch64": (52, 53, 54, 55, 88, 452),
}
"""chmod, chown and utime in all their forms: they succeed, and nothing is changed."""
UNSUPPORTED = {
    "x86_64": (188, 189, 190, 197, 198, 199, 463, 466, 469),
    "aarch64": (5, 6, 7, 14, 15, 16, 463, 466, 469),
}
"""setxattr, removexattr and file_setattr: as a file system says it that has no attributes."""
IOCTL = {"x86_64": 16, "aarch64": 29}
UNSUPPORTED_REQUESTS = (0x40086602, 0x40046602, 0x401C5820, 0x40806685)
"""FS_IOC_SETFLAGS, of 32 bits, too, FS_IOC_FSSETXATTR and FS_IOC_ENABLE_VERITY (include/uapi/linux/
fs.h, fsverity.h): they change a file that is open to be read.
"""
IO_URING_SETUP = 425
"""By its rings attributes are set past a filter of system calls: as a kernel says it without it."""
TRUNCATES = {"x86_64": 76, "aarch64": 45}
"""Of a path, which Landlock does not know before ABI 3."""

DEVICES = tuple(
    """
    /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/pts
    """.split()
)
SHARED_MEMORY = "/dev/shm"

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version of Landlock that this kernel has; 0 for none."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        return 0
    return max(int(_call(CREATE_RULESET, None, 0, VERSION)), 0)


def can_move() -> bool:
    """Whether a restricted thread may move a file from one directory of its own to another."""
    return abi() >= SINCE[REFER]


def _call(number: int, *args: object) -> int:
    words = [ctypes.c_size_t(each) if isinstance(each, int) else each for each in args]
    return int(_libc.syscall(ctypes.c_long(number), *words))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def deny_connections() -> bool:
    """Deny TCP connections to this thread and all that it starts, for ever. False where the kernel
    cannot do so (before Linux 6.7); then nothing is changed.
    """
    if abi() < FIRST_WITH_NETWORK:
        return False
    with suppress(OSError), _ruleset(struct.pack("=QQ", 0, CONNECT_TCP)) as rules:
        _enforce(rules)
        return True
    return False


@contextmanager
def _ruleset(attributes: bytes) -> Iterator[int]:
    rules = _check(_call(CREATE_RULESET, attributes, len(attributes), 0), "Landlock")
    try:
        yield rules
    finally:
        os.close(rules)


def _enforce(rules: int) -> None:
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_call(RESTRICT_SELF, rules, 0), "Landlock")


def restrict(folders: Iterable[str]) -> None:
    """Let this thread, and all that it starts from now on, change nothing but what is in some
    folders.

    Raises OSError where the kernel does not do so, or does a part of it.
    """
    version = abi()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    handled = CHANGES | sum(right for right, since in SINCE.items() if version >= since)
    with _ruleset(struct.pack("=Q", handled)) as rules:
        for folder in folders:
            _allow(rules, folder, handled)
        for device in DEVICES:
            _allow(rules, device, WRITE_FILE | (TRUNCATE & handled))
        objects = WRITE_FILE | MAKE_REG | REMOVE_FILE | (TRUNCATE & handled)
        _allow(rules, SHARED_MEMORY, objects)
        _enforce(rules)
    _filter_calls(truncates=version < SINCE[TRUNCATE])


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Nothing where the path is not there."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= WRITE_FILE | TRUNCATE
        rule = struct.pack("=Qi", rights, place)
        _check(_call(ADD_RULE, ruleset, BENEATH, rule, 0), path)
    finally:
        os.close(place)


class _Program(ctypes.Structure):
    """`struct sock_fprog` of include/uapi/linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_calls(*, truncates: bool) -> None:
    """Add a filter in the language of include/uapi/linux/bpf_common.h: a word is loaded,
    compared, and an answer returned.
    """
    load, jump_equal, answer = 0x20, 0x15, 0x06
    allow, say = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
    machine = platform.machine()
    answers = dict.fromkeys(UNMADE[machine], 0) | dict.fromkeys(
        UNSUPPORTED[machine], errno.EOPNOTSUPP
    )
    answers[IO_URING_SETUP] = errno.ENOSYS
    if truncates:
        answers[TRUNCATES[machine]] = errno.EACCES
    steps = [
        (load, 0, 0, 4),
        (jump_equal, 1, 0, ARCHITECTURES[machine]),
        (answer, 0, 0, allow),  # of a program for 32 bits
        (load, 0, 0, 0),
    ]
    for number, error in answers.items():
        steps += [(jump_equal, 0, 1, number), (answer, 0, 0, say | error)]
    steps += [(jump_equal, 0, 1 + 2 * len(UNSUPPORTED_REQUESTS), IOCTL[machine]), (load, 0, 0, 24)]
    for request in UNSUPPORTED_REQUESTS:
        steps += [(jump_equal, 0, 1, request), (answer, 0, 0, say | errno.EOPNOTSUPP)]
    steps.append((answer, 0, 0, allow))
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    filter_ = ctypes.byref(program)
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_, 0, 0), "seccomp")


def is_enforced(file: str) -> bool:
    """Whether this thread is kept from changing a file that is its own; by trying it."""
    before = os.stat(file)
    try:
        os.chmod(file, 0o400)
        os.close(os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC))
    except PermissionError:
        return os.stat(file) == before
    return False
