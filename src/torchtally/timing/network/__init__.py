"""Seconds between chips: the time of a collective, by NCCL's own tuning model.

group       how many ranks, on how many nodes
generation  what NCCL counts on, for each generation of GPUs
meshes      rings through chips that are joined without a switch
wires       the links and cards of a cluster that a group uses
graphs      channels that NCCL's search finds over them, and their speeds
ways        algorithms and protocols for a collective: latency and bandwidth
sends       the same of sends, all-to-all, gather and scatter
collective  the way that NCCL takes, and its time
buffers     the device memory of a communicator
"""

from torchtally.timing.network.buffers import buffer_bytes
from torchtally.timing.network.collective import (
    CollectiveKind,
    Transfer,
    collective,
    least_sent_bytes,
)
from torchtally.timing.network.group import RankGroup
from torchtally.timing.network.ways import Algorithm
