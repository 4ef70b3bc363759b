"""CPUs beside a GPU: how long they take to issue operators, over the estimate for any of them.

    a linear layer, forward       us         times the estimate (a product and a view: 13 us)
    Xeon 8480C beside an H100     13.5       1.04
    Grace beside a GH200, GB200   33.2, 37.1 2.6, 2.9

(NVIDIA/TransformerEngine issue 2053). A kernel of a training step takes 9.8 us on a desktop with an
RTX 4060, and 31 on a cloud's machine with an L4 (roboflow/rf-detr issue 1410), 3.2 times as long.
In virtual machines with an H100 (16 cores of an Intel Xeon, PyTorch 2.11) a step that waits for its
host, two layers of 128, takes 3.05 ms, 2.15 times as long as by the estimate; by the rates that
`tally bench` measured there a step of GPT-2 takes 2.3 times as long, with 19.4 us for an operator
forward, 32.1 backward, 2.0 for a view and 5.2 for each further kernel. The other cases of
tests/truth/corpus had no part in that.
"""

from dataclasses import dataclass

from msgspec import structs

from torchtally.chips import Chip
from torchtally.timing.calibration import Issue
from torchtally.timing.constants import ESTIMATED_ISSUE_S

ESTIMATED_ISSUE = Issue(**ESTIMATED_ISSUE_S)


@dataclass(frozen=True, slots=True)
class HostCpu:
    """A CPU that issues operators."""

    name: str
    times: float
    """Of `ESTIMATED_ISSUE`, what it takes."""

    @property
    def issue(self) -> Issue:
        estimated = structs.asdict(ESTIMATED_ISSUE)
        return Issue(**{name: self.times * seconds for name, seconds in estimated.items()})


NO_HOST = HostCpu("none: kernels alone", 0.0)
"""As where a CUDA graph issues the whole step."""
USUAL = HostCpu("Xeon 8480C, or a desktop's", 1.0)
GRACE = HostCpu("Grace", 2.7)
VIRTUAL = HostCpu("Xeon in a virtual machine", 2.3)
CLOUD = HostCpu("of a cloud's L4", 31 / 9.8)
HOSTS = (NO_HOST, USUAL, VIRTUAL, GRACE, CLOUD)

WITH_GRACE = ("GH200", "GB200", "GB300")
"""Chips that are sold on one board with it: beginnings of their names."""


def host_of(chip: Chip) -> HostCpu:
    """That stands beside such a chip."""
    return GRACE if chip.name.startswith(WITH_GRACE) else USUAL
