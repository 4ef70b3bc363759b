"""What a step takes besides its kernels and the communication that shows.

p: stages.  m: micro-batches.  v: chunks of layers on a chip.
"""

from torchtally.plan.closed_form import Fraction, Number, Seconds, closed_form
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
    """What the host takes longer than the device, and what the device waits for at any rate: a
    layer of experts is launched when the host has read how many tokens each got. A round is a
    micro-batch on a stage's layers.
    """
    waited = "waited_for * rounds * launch_s + " if waited_for else ""
    return f"{waited}max(0, launches * rounds * launch_s - busy_s)"
