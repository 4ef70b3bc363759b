"""Whether limits hold, and what they are held against."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchtally.gates.gauges import GAUGES, GaugeReading
from torchtally.gates.limits import Limit
from torchtally.ledger import Ledger
from torchtally.table import Table
from torchtally.table.shown import Shown
from torchtally.units import Unit
from torchtally.views.moments import moment_at

OF_MEMORY = ("peak", "reserved")


@dataclass(frozen=True, slots=True)
class Finding:
    """A limit, and what the quantity is."""

    limit: Limit
    unit: Unit
    reading: GaugeReading
    where: str = ""
    """Of a peak: when it is reached."""
    evidence: Table | None = None
    """Of a limit that does not hold: the lines behind it."""

    @property
    def is_decided(self) -> bool:
        """What may be more than was counted can still exceed an upper limit, and keep a lower one;
        of what may be less, the other way round.
        """
        value, reading = self.reading.value, self.reading
        if value is None:
            return False
        return not reading.doubt or (
            reading.is_most is not None
            and self.limit.holds(value) is (self.limit.is_upper is reading.is_most)
        )

    @property
    def holds(self) -> bool:
        """A limit that cannot be decided does not hold."""
        value = self.reading.value
        return value is not None and self.is_decided and self.limit.holds(value)


class Findings(Shown, list[Finding]):
    """A finding for each limit, in their order."""


def check(ledger: Ledger, limits: Iterable[Limit]) -> Findings:
    """A finding for each limit, in their order."""
    return Findings(_finding(ledger, limit) for limit in limits)


def _finding(ledger: Ledger, limit: Limit) -> Finding:
    gauge = GAUGES[limit.name]
    reading = gauge.reading(ledger)
    finding = Finding(limit, gauge.unit, reading)
    if finding.holds or reading.value is None:
        return finding
    moment = moment_at(ledger, ledger.memory.peak_tick) if limit.name in OF_MEMORY else None
    return Finding(limit, gauge.unit, reading, str(moment or ""), gauge.evidence(ledger))


def check_values(
    values: Mapping[str, tuple[float, Unit]], limits: Iterable[Limit]
) -> list[Finding]:
    """The same of quantities that are known by their names."""
    return [
        Finding(limit, values[limit.name][1], GaugeReading(values[limit.name][0]))
        for limit in limits
    ]
