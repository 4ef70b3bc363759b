"""The traces of ranks that ran together: one file of the first, and a folder of the others'."""

import os
from collections import defaultdict

from torchtally.trace.trace import Trace

SUFFIX = ".ranks"
MESSAGES = {"c10d.send": "dst", "c10d.recv_": "src"}
"""Operators between two ranks, and the argument that names the other by its number in the group."""

ONE_SIDED = dict.fromkeys(
    ("symm_mem.get", "symm_mem.put", "symm_mem.put_signal", "symm_mem.wait_signal"), "peer"
)
"""Operators on another rank's memory, in which that rank has no part, and their argument for it."""


def place_of_rank(path: str, rank: int) -> str:
    """Path of the trace of another rank, beside that of the first."""
    return os.path.join(path + SUFFIX, f"rank{rank}.tally")


def load_peers(trace: Trace, path: str) -> list[Trace]:
    """The traces of the ranks that ran with this one. Raises TraceFileError where one is lost."""
    return [Trace.load(place_of_rank(path, rank)) for rank in trace.peers]


def neighbours(trace: Trace) -> set[int]:
    """Ranks that the traced one both sends to and receives from: stages of a pipeline.

    In a ring of more than two it sends to one rank and receives from another: those do alike.
    """
    ways: dict[int, set[str]] = defaultdict(set)
    for call in trace.calls:
        argument, number = MESSAGES.get(call.name), call.literal("group")
        if argument is None or not isinstance(number, int) or number >= len(trace.groups):
            continue
        peer, ranks = call.literal(argument), trace.groups[number].ranks
        if isinstance(peer, int) and 0 <= peer < len(ranks):
            ways[ranks[peer]].add(argument)
    return {rank for rank, both in ways.items() if len(both) == 2}
