"""Pace of chips and their hosts: as in the best published measurements, or as in trainings.

What kernels reach at best, `timing/roofline` holds. A training lasts: a chip at its limit of power
lowers its clocks, shapes are not those of a benchmark, caches are shared. `TYPICAL` is what that
leaves, in few constants of few chips, learnt from one half of one published table and tried on all
others (`benchmarks/published_trainings.py`; docs/accuracy.md has both).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchtally.chips import Chip
from torchtally.chips.capabilities import AMPERE_AND_ADA
from torchtally.plan.activations.setting import Implementation
from torchtally.timing.constants import (
    AMPERE_PRODUCTS,
    CONTENTION,
    LINKS,
    MESSAGE_S,
    MODULES_LAUNCH_S,
    OTHER_PRODUCTS,
    PASSES,
)
from torchtally.timing.hosts import ESTIMATED_ISSUE


class Host(StrEnum):
    """Who issues kernels."""

    BLOCKING = "blocking"
    """Python with CUDA_LAUNCH_BLOCKING=1: it waits for each kernel before it issues the next."""
    EAGER = "eager"
    """Python, module by module."""
    COMPILED = "compiled"
    """torch.compile's wrapper code."""
    DENSE_GRAPHS = "dense-graphs"
    """CUDA graphs of all but experts (Megatron-LM's `cuda_graph_scope` of attn, moe_router and
    moe_preprocess), whose kernels Python issues."""
    GRAPHS = "graphs"
    """CUDA graphs, which are launched as a whole."""


ISSUED_BY = {
    Host.BLOCKING: "an eager host that waits for each",
    Host.EAGER: "an eager host",
    Host.COMPILED: "a compiled host",
    Host.DENSE_GRAPHS: "CUDA graphs, and an eager host for experts",
    Host.GRAPHS: "CUDA graphs",
}


@dataclass(frozen=True, slots=True)
class Pace:
    """Shares of the best published rates, and what a step takes besides."""

    name: str
    products: Mapping[str, float]
    """Share of the best rate of products, by the design of the chip's dies."""
    other_products: float
    """The same for all other chips."""
    passes: float
    """Share of the best bandwidth."""
    links: float
    """Share of the speed that NCCL's tuning model gives a collective."""
    message_s: float
    """What each collective takes besides: its launch, and until all ranks have come."""
    contention: float
    """How much longer compute takes while a collective runs beside it, over its time alone."""
    launch_s: Mapping[tuple[Host, Implementation], float]
    """What a host takes for one kernel; 0 where not said: it is never waited for."""
    has_gaps: bool = False
    """Kernels that queue wait a little (`gap_s` of the roofline); else it is in the shares, which
    are learnt of whole steps."""

    def products_of(self, chip: Chip) -> float:
        return self.products.get(chip.sm.design, self.other_products)

    def in_words(self, chip: Chip, host: Host) -> str:
        """What is assumed of kernels, hosts and the network."""
        siblings = " and ".join(f"{name}'s" for name in chip.siblings)
        rates = "the best published rates" + (f" ({siblings} among them)" if siblings else "")
        if self == BEST:
            return f"Kernels at {rates}; hosts run ahead; chips are alike."
        return (
            f"Pace: {self.name}, products at {self.products_of(chip):.0%} and passes over memory "
            f"at {self.passes:.0%} of {rates}, links at {self.links:.0%} and "
            f"{self.message_s * 1e6:.0f} us later, compute {self.contention:.1%} slower beside "
            f"communication, the slowest chip's time, kernels issued by {ISSUED_BY[host]} (--pace, "
            "--host)."
        )

    def launch_of(self, host: Host, implementation: Implementation) -> float:
        issuing = Host.EAGER if host in (Host.BLOCKING, Host.DENSE_GRAPHS) else host
        return self.launch_s.get((issuing, implementation), 0.0)


BEST = Pace(
    "best",
    {},
    other_products=1.0,
    passes=1.0,
    links=1.0,
    message_s=0.0,
    contention=0.0,
    launch_s={},
    has_gaps=True,
)
"""Kernels at their best published rates, chips alike, hosts ahead."""


TYPICAL = Pace(
    "typical",
    dict.fromkeys(AMPERE_AND_ADA, AMPERE_PRODUCTS),
    other_products=OTHER_PRODUCTS,
    passes=PASSES,
    links=LINKS,
    message_s=MESSAGE_S,
    contention=CONTENTION,
    launch_s={
        (Host.EAGER, Implementation.EAGER): ESTIMATED_ISSUE.forward_s,
        (Host.EAGER, Implementation.FUSED): MODULES_LAUNCH_S,
        (Host.COMPILED, Implementation.EAGER): ESTIMATED_ISSUE.backward_s,
        (Host.COMPILED, Implementation.FUSED): ESTIMATED_ISSUE.backward_s,
    },
)
"""What trainings sustain."""

PACES = {pace.name: pace for pace in (TYPICAL, BEST)}
