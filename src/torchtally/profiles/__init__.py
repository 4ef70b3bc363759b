"""What profilers wrote of real runs, as facts: no torch, no formula.

profile.py    operators, kernels, memory and steps of one process, whoever recorded them
kineto.py     torch.profiler's JSON (Kineto): a profile
nsys.py       Nsight Systems' exports, SQLite and Parquet: a profile
stream.py     the events of a JSON trace of any size, in bounded memory
nesting.py    which operator, and which Python code, an event of a thread lies in
"""

from torchtally.profiles.kineto import read_kineto
from torchtally.profiles.nsys import is_nsys, read_nsys
from torchtally.profiles.profile import (
    Arguments,
    DeviceActivity,
    HostOperator,
    MemoryChange,
    Profile,
    ProfiledDevice,
)

__all__ = [
    "Arguments",
    "DeviceActivity",
    "HostOperator",
    "MemoryChange",
    "Profile",
    "ProfiledDevice",
    "is_nsys",
    "read_kineto",
    "read_nsys",
]
