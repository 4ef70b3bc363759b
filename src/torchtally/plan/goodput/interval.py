"""How often to save: as often as costs least, saves and repeated work together."""

from torchtally.plan.closed_form import Seconds, closed_form
from torchtally.units import Unit

YOUNG = "Young 1974, Communications of the ACM 17(9)"
DALY = "Daly 2006, Future Generation Computer Systems 22(3), equation 37"


@closed_form("checkpoint interval by Young", Unit.SECONDS, YOUNG)
def young_interval_s(save_s: Seconds, mtbf_s: Seconds) -> str:
    """Seconds of work between two saves: first order, where a save is much shorter than both."""
    return "(2 * save_s * mtbf_s) ** 0.5"


@closed_form("checkpoint interval by Daly", Unit.SECONDS, DALY)
def daly_interval_s(save_s: Seconds, mtbf_s: Seconds) -> str:
    """Seconds of work between two saves, to higher order; for saves below twice the mean time."""
    return (
        "(2 * save_s * mtbf_s) ** 0.5"
        " * (1 + (save_s / (2 * mtbf_s)) ** 0.5 / 3 + save_s / (2 * mtbf_s) / 9) - save_s"
        " if save_s < 2 * mtbf_s else mtbf_s"
    )
