"""What profilers wrote of real runs, as facts: no torch, no formula.

profile.py    operators, kernels, memory and steps of one process, whoever recorded them
kineto.py     torch.profiler's JSON (Kineto): a profile
nsys.py       Nsight Systems' exports, SQLite and Parquet: a profile
execution.py  PyTorch's execution traces: arguments of a profile's operators
stream.py     the events of a JSON trace of any size, in bounded memory
heads.py      what stands around those events: devices, ranks, versions
arguments.py  operators' arguments, JSON within JSON
nesting.py    which operator, and which Python code, an event of a thread lies in
assembly.py   events of all threads as rows of a profile, kernels with their launches
snapshot.py   torch.cuda.memory's snapshots, read without running the pickle
history.py    a snapshot's allocations as a trace
"""

from torchtally.profiles.execution import is_execution_trace, read_execution_trace
from torchtally.profiles.kineto import read_kineto
from torchtally.profiles.nsys import is_nsys, read_nsys
from torchtally.profiles.profile import (
    Arguments,
    DeviceActivity,
    HostOperator,
    MemoryChange,
    Profile,
)
