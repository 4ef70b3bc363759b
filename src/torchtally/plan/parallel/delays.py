"""What a step takes besides its kernels and the communication that shows.

p: stages.  m: micro-batches.  v: chunks of layers on a chip.
"""

from torchtally.plan.closed_form import (
    BytePerS,
    Bytes,
    Count,
    Fraction,
    Number,
    Seconds,
    closed_form,
)
from torchtally.timing.constants import TURNS
from torchtally.units import Unit

SINHA = "Sinha et al., arXiv:2208.11035: chips of one kind vary by 8 %"
LEE = "Lee et al., arXiv:2507.03114"


@closed_form("stragglers", Unit.SECONDS, SINHA)
def stragglers_s(slowest: Number, compute_s: Seconds, bubble_s: Seconds) -> str:
    """All wait for the slowest, which takes so many times the mean."""
    return "(slowest - 1) * (compute_s + bubble_s)"


@closed_form("slow", Unit.SECONDS, note="nine of ten published trainings took no longer")
def slow_s(typical_s: Seconds, slower: Number) -> str:
    return "typical_s * slower"


@closed_form("contention", Unit.SECONDS, LEE, "compute beside communication takes longer")
def contention_s(longer: Fraction, sent_s: Seconds, exposed_s: Seconds) -> str:
    """Compute takes so much longer while communication hides behind it."""
    return "longer * max(0, sent_s - exposed_s)"


@closed_form("host", Unit.SECONDS, note="launching kernels, where the device waits for it")
def host_s(
    launches: Number, waited_for: Number, rounds: Number, launch_s: Seconds, busy_s: Seconds
) -> str:
    """What the host adds to the device's time, and what the device waits for at any rate: a layer
    of experts is launched when the host has read how many tokens each got. A round is a
    micro-batch on a stage's layers.
    """
    if not launch_s:
        return "launch_s"
    waited = "waited_for * rounds * launch_s + " if waited_for else ""
    both = f"((launches * rounds * launch_s)**{TURNS} + busy_s**{TURNS})**{1 / TURNS}"
    return f"{waited}{both} - busy_s"


@closed_form("offload", Unit.SECONDS, note="layers' activations to the host, and back")
def offload_s(
    layers: Count,
    layer_bytes: Bytes,
    bytes_per_s: BytePerS,
    forward_s: Seconds,
    backward_s: Seconds,
) -> str:
    there = "max(0, layer_bytes / bytes_per_s - forward_s)"
    back = "max(0, layer_bytes / bytes_per_s - backward_s)"
    return f"layers * ({there} + {back})"
