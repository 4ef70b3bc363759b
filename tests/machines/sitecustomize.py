"""An invented machine in place of this one, in every Python that inherits two variables.

`TALLY_TESTS_MACHINE=NAME make test` runs all tests on it: tests/conftest.py puts this folder on
PYTHONPATH, where Python looks for `sitecustomize` when it starts. It answers the questions by which
the package asks the machine: the name of its CPU, its memory and its cores. Nothing else differs.
"""

import os
import pathlib
from typing import Any, NamedTuple

VARIABLE = "TALLY_TESTS_MACHINE"


class Machine(NamedTuple):
    cpu: str
    """As /proc/cpuinfo has it; "" where it has none, as on ARM."""
    memory_bytes: int
    cores: int


MACHINES = {
    "measured": Machine("Intel(R) Xeon(R) Processor @ 2.50GHz", 8 << 30, 2),
    "nameless": Machine("", 3 << 30, 1),
    "large": Machine("AMD EPYC 9965 192-Core Processor", 1 << 40, 48),
}
"""One whose CPU has a shipped calibration, a small one whose CPU has no name, and a server."""


def pretend(machine: Machine) -> None:
    """Let Python's own functions say of this machine that it is that one."""
    names = {"SC_PHYS_PAGES": machine.memory_bytes // os.sysconf("SC_PAGE_SIZE")}
    names |= dict.fromkeys(("SC_NPROCESSORS_ONLN", "SC_NPROCESSORS_CONF"), machine.cores)
    name = f"model name\t: {machine.cpu}\n" if machine.cpu else ""
    blocks = (f"processor\t: {core}\n{name}" for core in range(machine.cores))
    cpuinfo = "\n".join(blocks)
    sysconf, read_text = os.sysconf, pathlib.Path.read_text

    def pretended_text(path: pathlib.Path, *args: Any, **kwargs: Any) -> str:
        return cpuinfo if str(path) == "/proc/cpuinfo" else read_text(path, *args, **kwargs)

    replacements: dict[str, Any] = {
        "sysconf": lambda name: names.get(name) or sysconf(name),
        "cpu_count": lambda: machine.cores,
        "sched_getaffinity": lambda pid: set(range(machine.cores)),
    }
    for attribute, replacement in replacements.items():
        setattr(os, attribute, replacement)
    pathlib.Path.read_text = pretended_text


if name := os.environ.get(VARIABLE):
    if name not in MACHINES:
        raise SystemExit(f"{VARIABLE}={name}: choose one of {', '.join(MACHINES)}")
    pretend(MACHINES[name])
