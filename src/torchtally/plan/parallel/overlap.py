"""How much communication overlaps with compute: assumptions, one for each degree of parallelism."""

from collections.abc import Mapping
from dataclasses import dataclass

from torchtally.plan.closed_form import Fraction, Seconds, closed_form
from torchtally.plan.parallel.degrees import DEGREES
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.units import Unit

DEFAULTS: Mapping[str, float] = {degree.name: degree.overlap for degree in DEGREES}


@dataclass(frozen=True, slots=True)
class Overlap:
    """Share of the compute that runs meanwhile, behind which communication can hide."""

    shares: Mapping[str, float]
    """By the name of the degree."""

    def assumptions(self) -> tuple[str, ...]:
        """One for each degree of parallelism."""
        return tuple(
            f"{degree.overlapped} {self.shares[degree.name]:.0%}{degree.overlap_note}"
            for degree in DEGREES
        )


def overlap_of(**shares: float) -> Overlap:
    """The table's assumptions with these shares replacing its own: `overlap_of(data=0.0)`."""
    assert shares.keys() <= DEFAULTS.keys(), f"no such degree: {shares.keys() - DEFAULTS.keys()}"
    return Overlap({**DEFAULTS, **shares})


def exposed_s(name: str, sent_s: Quantity, work_s: Quantity, share: float) -> Quantity:
    """Seconds of communication that show beside so much work."""
    if not sent_s.value or not share:
        return sent_s.with_name(name)
    return _exposed_s(sent_s, share, work_s).with_name(name)


def exposed_by_layers_s(
    name: str, sent_s: Quantity, work_s: Quantity, share: float, layers: Quantity
) -> Quantity:
    """The same where one layer's part cannot hide: the first or the last."""
    if not sent_s.value or not share:
        return sent_s.with_name(name)
    formula, part = "max(sent_s / layers, sent_s - share * work_s)", of(share, Unit.FRACTION)
    terms = {"sent_s": sent_s, "share": part, "work_s": work_s, "layers": layers}
    return derive(name, Unit.SECONDS, formula, **terms)


@closed_form("exposed", Unit.SECONDS)
def _exposed_s(sent_s: Seconds, share: Fraction, work_s: Seconds) -> str:
    return "max(0, sent_s - share * work_s)"
