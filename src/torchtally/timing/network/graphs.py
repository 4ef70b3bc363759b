"""What NCCL's search finds in a cluster: channels for each pattern, and the speed of one.

The search tries speeds of a fixed grid and counts channels that fit into links and cards. Its
answer is computed here for nodes whose chips all reach each other alike (a switch, a bridge, the
host); of a mesh, `wires` gives the links that rings find in it.

Source: ncclTopoCompute and ncclTopoDupChannels in src/graph/search.cc, NVIDIA/nccl @5067397c.
"""

import math
from dataclasses import dataclass

from torchtally.timing.network.generation import BLACKWELL, HOPPER, Speeds
from torchtally.timing.network.wires import Wires

MOST_CHANNELS = 32
"""MAXCHANNELS / 2: the search's channels are doubled afterwards."""
MOST_HEADS = 32
"""NCCL_MAX_NVLS_ARITY."""
FULL_NODE = 8
"""Chips of the node for which `nvls_share` was measured."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Channels of one pattern; speeds of one channel in GB/s."""

    channels: int
    in_node: float
    between: float
    """The same as `in_node` on one node."""


def ring(wires: Wires) -> Graph:
    """A ring through every rank of a node once, and over one card into the next node."""
    grid = _grid(wires)
    channels, speed = _widest(grid, wires)
    # Channels that are fast are split: one block of a kernel does not fill them.
    is_new = wires.generation in (HOPPER, BLACKWELL)
    if speed >= 25.0 and not (is_new and speed < 50.0 and channels > 4):
        doubled = min(2 * channels, MOST_CHANNELS)
        channels, speed = doubled, speed / -(-doubled // channels)
    return Graph(channels, speed, speed)


def tree(wires: Wires, channels: int) -> Graph:
    """A chain in the node, whose last rank sends nothing on; trees between nodes."""
    k, grid = wires.group.per_node, _grid(wires)
    # Of k ranks, k - 1 send.
    room = math.inf if wires.link is None or k == 1 else wires.link * k / (k - 1) / channels
    if wires.card is None:
        speed = _fastest(grid, room)
        return Graph(channels, speed, speed)
    between = _fastest(grid, min(room, wires.card * wires.cards / channels))
    in_node = between
    for speed in reversed(grid):
        if in_node < 2 * between and in_node < speed <= room:
            in_node = speed
    return Graph(channels, in_node, between)


def nvls(wires: Wires) -> Graph | None:
    """One channel for each head, whose part the switch reduces; None without such a switch.

    With h heads a chip's link carries h + 1 channels, its own twice. The grid's speed for the full
    node, of which NCCL's efficiency is a share, is spread over other numbers of heads exactly:
    the grid is coarse (40 GB/s for 7 heads as for 8), and the switch has no grid.
    """
    heads = min(wires.group.per_node, MOST_HEADS)
    if not wires.has_multicast or heads < 2 or wires.link is None:
        return None
    grid = wires.generation.grid_in_node
    in_node = _fastest(grid, wires.link / (max(heads, FULL_NODE) + 1))
    if heads < FULL_NODE:
        in_node *= (FULL_NODE + 1) / (heads + 1)
    if wires.card is None:
        return Graph(heads, in_node, in_node)
    between = _fastest(wires.generation.grid_between, wires.card * wires.cards / heads)
    return Graph(heads, min(in_node, between), min(between, 2 * in_node))


def _grid(wires: Wires) -> Speeds:
    alike = wires.generation
    return alike.grid_in_node if wires.card is None else alike.grid_between


def _fitting(wires: Wires, speed: float) -> int:
    """Rings of this speed."""
    counts = [MOST_CHANNELS]
    if wires.link is not None:
        counts.append(int(wires.link / speed + 1e-9))
    if wires.card is not None:
        counts.append(wires.cards * int(wires.card / speed + 1e-9))
    return min(counts)


def _widest(grid: Speeds, wires: Wires) -> tuple[int, float]:
    """Channels and speed of the most bandwidth; of equals, the fewer and faster."""
    channels, best = 0, 0.0
    for speed in grid:
        if channels and speed / best <= 0.49:
            break
        count = _fitting(wires, speed)
        if count * speed > channels * best:
            channels, best = count, speed
    if channels:
        return channels, best
    # Wires slower than all of the grid: NCCL would give up here, and they are as fast as they are.
    channels = max(1, wires.cards)
    speeds = [] if wires.link is None else [wires.link / channels]
    return channels, min([*speeds, *([] if wires.card is None else [wires.card])])


def _fastest(grid: Speeds, limit: float) -> float:
    """The fastest of the grid's speeds within a limit; the limit, where all are faster."""
    return next((speed for speed in grid if speed <= limit + 1e-9), limit)
