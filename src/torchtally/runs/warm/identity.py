"""Which commands a server may stand in for: those that would start exactly as it did.

A server has read its environment, limits and rights at its start, and torch has them from there.
So its socket is named by a digest of all of them: a command with another variable, umask, ulimit,
CPU set or control group looks for a socket that is not there, and runs by itself.
"""

import os
import stat
import sys
from _blake2 import blake2b

NOT_READ = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TALLY_SERVE"})
"""Variables of the shell's that no import reads, and ours. A fork has those of its command."""
STATUS = frozenset(
    "Umask Uid Gid Groups SigBlk SigIgn CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp"
    " Cpus_allowed Mems_allowed".split()
)
"""Lines of /proc/self/status: `man 5 proc_pid_status`."""
NAMESPACES = ("mnt", "pid", "net", "user", "uts", "ipc", "cgroup")


def identity() -> str:
    """Digest of all that this process started with. Raises OSError without Linux's /proc."""
    with open("/proc/self/status", encoding="utf-8") as file:
        status = [line for line in file if line.partition(":")[0] in STATUS]
    variables = sorted(item for item in os.environ.items() if item[0] not in NOT_READ)
    interpreter = sys.executable, sys.version, sys.prefix, sys.flags, sys.warnoptions, sys._xoptions
    facts = (
        interpreter,
        sys.path[len(first_entry()) :],
        variables,
        status,
        _text("/proc/self/limits"),
        _text("/proc/self/cgroup"),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.readlink("/proc/self/root"),
        [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES],
    )
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def first_entry() -> list[str]:
    """The entry of `sys.path` that depends on how a program was named; of some there is none."""
    return [] if sys.flags.safe_path else sys.path[:1]


def folder() -> str:
    """The folder of this user's sockets, made where it is missing. Raises OSError where it is not
    ours alone.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # A relative one is to be ignored (XDG Base Directory Specification); the server runs in "/".
    path = os.path.join(base if os.path.isabs(base) else "/tmp", f"torchtally-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not is_ours or stat.S_IMODE(found.st_mode) != 0o700:
            raise PermissionError(f"{path}: is not a folder of rights 0700 of this user") from None
    return path


def socket_place(digest: str) -> str:
    """The socket of the server for commands of this digest. Raises OSError as `folder`."""
    return os.path.join(folder(), f"{digest}.socket")


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
