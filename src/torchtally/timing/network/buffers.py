"""Device memory that NCCL allocates for one communicator, outside of PyTorch's allocator.

An estimate: connections are made when an algorithm first runs (NCCL_RUNTIME_CONNECT), so the sum
depends on which do. Not in it: proxies' and kernels' own tables (a few MiB), buffers that users
register, and what a split communicator shares with its parent.

Source, NVIDIA/nccl 2.30.7 @5067397c: sizes in src/init.cc (computeBuffSizes) and
src/include/device.h; connections in src/transport/p2p.cc and net.cc; NVLS in src/transport/nvls.cc.
"""

from collections.abc import Iterable

from torchtally.chips import Cluster
from torchtally.timing.network.graphs import nvls, ring
from torchtally.timing.network.group import RankGroup
from torchtally.timing.network.ways import Algorithm, kernel_channels
from torchtally.timing.network.wires import Wires, wires

STEPS = 8
LL_BYTES = 8 * 512 * STEPS * 16
"""Lines of 16 bytes, 8 for each of 512 threads."""
LL128_BYTES = 120 * 640 * STEPS * 8
SIMPLE_BYTES = 4 << 20
BUFFERS_BYTES = LL_BYTES + LL128_BYTES + SIMPLE_BYTES
"""Of one connection between two ranks of a channel, at the receiver: one for each protocol."""
PAGE_BYTES = 2 << 20
"""What is allocated for another process is a multiple of it (CUDA_IPC_MIN)."""
RECEIVER_BYTES = -(-BUFFERS_BYTES // PAGE_BYTES) * PAGE_BYTES
CONNECTION_BYTES = RECEIVER_BYTES + PAGE_BYTES
"""A rank receives over as many connections of a node as it sends over; a sender keeps a counter.
NVIDIA/nccl#1685 saw both sizes on 8 H100, and 3.28 GB for all to all: 14 % above this.
"""
NVLS_BYTES = 128 * 1024 * STEPS
"""NVLS_CHUNKSIZE, for each channel, head and direction."""
NETWORK_POOL_BYTES = 16 * 128 * 1024
"""Of one channel and direction: all sends over the network share it (NCCL_SHARED_STEPS)."""
MOST_PER_PEER = 32
"""Channels of a send within a node: two for each NVLink, up to those there are."""


def buffer_bytes(algorithms: Iterable[Algorithm], group: RankGroup, cluster: Cluster) -> int:
    """Bytes of one rank's communicator in which these algorithms have run: an estimate."""
    if group.ranks == 1:
        return 0
    where = wires(group, cluster)
    channels = kernel_channels(where, ring(where))
    total = 0
    for algorithm in set(algorithms):
        if algorithm == "ring":
            total += channels * _connections_bytes(where, incoming=1)
        elif algorithm in ("tree", "PAT"):
            # From above and from below: two trees of two children each between nodes.
            total += channels * _connections_bytes(where, incoming=2)
        elif algorithm in ("NVLS", "NVLSTree"):
            total += _nvls_bytes(where)
        else:
            total += _sends_bytes(where, channels)
    return total


def _connections_bytes(where: Wires, incoming: int) -> int:
    """Bytes of connections over the network: the sender keeps as much as the receiver does."""
    return incoming * (2 * BUFFERS_BYTES if where.link is None else CONNECTION_BYTES)


def _nvls_bytes(where: Wires) -> int:
    graph = nvls(where)
    if graph is None:
        return 0
    channels = where.generation.nvls_channels[0 if where.group.nodes == 1 else 1]
    return 2 * channels * graph.channels * NVLS_BYTES


def _sends_bytes(where: Wires, channels: int) -> int:
    """Bytes of a connection to every rank of the node for each channel; one pool for all other
    nodes.
    """
    near = where.group.per_node - 1
    power = 1 << (channels - 1).bit_length()
    each = min(power, MOST_PER_PEER) if where.is_nvlink else 2
    pool = 2 * power * NETWORK_POOL_BYTES if where.card is not None else 0
    return near * each * CONNECTION_BYTES + pool
