"""A real run's ledger: from what a profiler recorded to a trace.

schemas.py    the operator that a profiler's row names, and whether the dispatcher shows it
untyped.py    types for arguments that were recorded by their sizes alone
replaying.py  each distinct call made once on the simulated GPU: what tells its shapes and cost
sites.py      Python stacks of a profiler as places of a trace
collectives.py  what NCCL's kernels say of themselves
phases.py     phase, training step and line of an operator
allocations.py  the allocator's events as storages
building.py   all of it together: a profile as a trace
"""

from torchtally.runs.explain.building import trace_of
