"""What NCCL's tuning knows of each generation of GPUs: speeds, in bytes per second.

Source: NVIDIA/nccl 2.30.7 @5067397c. Of a link: SM70_NVLINK_BW and its like in src/graph/topo.h.
Grids: speedArrayIntra and speedArrayInter in src/graph/search.cc. The rest: src/graph/tuning.cc.
"""

from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.timing.constants import (
    GA102_LINK_SHARE,
    LL_BETWEEN_OF_AMD,
    NODE_TIMES_AMPERE,
    NODE_TIMES_BLACKWELL,
    NODE_TIMES_HOPPER,
    NODE_TIMES_PCIE,
)

GB = 1e9
Speeds = tuple[float, ...]
ByNodes = tuple[float, float, float]
"""For a group on one node, on two, on more."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation's constants."""

    name: str
    link_share: float
    """Of an NVLink's promised speed, what NCCL counts on."""
    grid_in_node: Speeds
    grid_between: Speeds
    """Speeds of one channel that the search tries, in GB/s, the fastest first."""
    ll: float
    """Most that LL reaches in one node, over all channels."""
    ring_ll128: float
    tree_ll128: ByNodes
    tree: ByNodes
    nvls_tree: ByNodes
    """Most that one channel reaches."""
    nvls_share: float = 0.0
    """Of what a switch with multicast could do; 0: none has one."""
    nvls_channels: tuple[int, int] = (0, 0)
    """Blocks of the kernel on one node, and on more (src/transport/nvls.cc)."""
    measured: "NodeTimes | None" = None


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Microseconds of NCCL's kernels within one node, where NCCL's own table is off."""

    ll_us: tuple[float, float]
    """Of a ring by LL before the first byte moves, and of each step."""
    simple_us: tuple[float, float]
    """The same by "simple"."""
    sends_us: tuple[float, float]
    """Of sends by "simple", and of each partner."""
    copy: float
    """Of a step, what a rank takes to copy a part that it does not send on: its own, or the last
    that arrives. The step's bytes wait meanwhile."""


_AMPERE_GRIDS = (
    (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
    (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2,
     0.24, 0.12),
)  # fmt: skip

VOLTA = Generation(
    "Volta", 20.0 / 25.0, *_AMPERE_GRIDS, ll=39.0, ring_ll128=20.0,
    tree_ll128=(20.0, 20.0, 20.0), tree=(26.5, 18.5, 10.0), nvls_tree=(0.0, 0.0, 0.0),
)  # fmt: skip
AMPERE = Generation(
    "Ampere", 20.0 / 25.0, *_AMPERE_GRIDS, ll=87.7, ring_ll128=20.0,
    tree_ll128=(20.0, 20.0, 20.0), tree=(24.0, 23.6, 17.8), nvls_tree=(0.0, 0.0, 0.0),
    measured=NodeTimes(**NODE_TIMES_AMPERE),
)  # fmt: skip
HOPPER = Generation(
    "Hopper", 20.6 / 25.0,
    (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24,
     0.12),
    ll=141.0, ring_ll128=36.7, tree_ll128=(36.7, 36.7, 29.0), tree=(38.7, 41.4, 36.0),
    nvls_tree=(0.0, 57.7, 45.5), nvls_share=0.85, nvls_channels=(16, 16),
    measured=NodeTimes(**NODE_TIMES_HOPPER),
)  # fmt: skip
BLACKWELL = Generation(
    "Blackwell", 40.1 / 50.0,
    (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    (96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0,
     2.4, 1.2, 0.24, 0.12),
    ll=2 * 141.0, ring_ll128=40.0, tree_ll128=(55.6, 31.67, 20.0), tree=(70.0, 42.8, 24.0),
    nvls_tree=(0.0, 96.0, 80.0), nvls_share=0.74, nvls_channels=(24, 32),
    measured=NodeTimes(**NODE_TIMES_BLACKWELL),
)  # fmt: skip

LL_BETWEEN = {"AMD": LL_BETWEEN_OF_AMD}
"""Most that LL reaches over two nodes and over more, else `LL_BETWEEN_OTHERS`."""
PCIE_MEASURED = NodeTimes(**NODE_TIMES_PCIE)


def generation(chip: Chip) -> Generation:
    """The generation of a chip, by its instructions.

    What is not a CUDA device has another library, taken to be like NCCL on an A100: an estimate.
    """
    if not chip.sm.has_async_copies:
        return VOLTA
    if not chip.sm.has_tma:
        return AMPERE
    return HOPPER if chip.sm.has_wgmma else BLACKWELL


def link_share(chip: Chip) -> float:
    """Share of the promised speed of a chip's own link that NCCL counts on."""
    return GA102_LINK_SHARE if chip.sm.design == "GA10x" else generation(chip).link_share
