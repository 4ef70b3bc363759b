"""How long a step takes, what for, and how far that can be trusted."""

from dataclasses import dataclass
from math import fsum

from torchtally.ledger import Ledger, Untimed
from torchtally.timing.calibration import Calibration
from torchtally.timing.roofline import Bound
from torchtally.views.collectives import NetworkTime, network_time
from torchtally.views.columns import part_of
from torchtally.views.hosts import HostTime, slow_host
from torchtally.views.throughput import Throughput, throughput
from torchtally.views.time_range import TimeRange, time_range
from torchtally.views.utilisation import Utilisation, model_split, model_utilisation

MUCH_OVERHEAD = 0.3
"""Of a step's time: beyond it, a report says what would help."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Predicted time of the reported period."""

    step_s: float
    kernel_s: float
    """Of this the device is at work; the rest it waits for the host."""
    shares: tuple[tuple[Bound, float], ...]
    """Of the time, by bound, the largest first; those of nothing are left out."""
    is_host: bool
    """The chip is the CPU that runs the script."""
    range: TimeRange | None
    """What the time stands for; None of a period without times."""
    slow_host: HostTime | None
    """Beside a slower CPU, where that matters."""
    calibration: Calibration | None
    calibrated_share: float
    """Of the kernels' time, what operators take that the calibration measured."""
    utilisation: Utilisation | None
    """MFU by the ledger's convention."""
    split: tuple[Utilisation, ...]
    """Its parts in each dtype, where several matter."""
    throughput: Throughput | None
    network: NetworkTime | None
    """Of a run that communicates."""
    untimed: tuple[Untimed, ...]

    @property
    def untimed_ops(self) -> int:
        return sum(untimed.count for untimed in self.untimed)

    @property
    def idle_share(self) -> float:
        return part_of(max(0.0, self.step_s - self.kernel_s), self.step_s)

    @property
    def overhead_share(self) -> float:
        return dict(self.shares).get(Bound.OVERHEAD, 0.0)

    @property
    def is_overhead_bound(self) -> bool:
        return self.overhead_share > MUCH_OVERHEAD

    @property
    def is_waiting_for_host(self) -> bool:
        """Most of the overhead is the device standing idle, rather than kernels too small."""
        return 2 * self.idle_share > self.overhead_share


def step_time(ledger: Ledger) -> StepTime | None:
    """None for a ledger without times."""
    roofline, total = ledger.roofline, ledger.total
    if roofline is None:
        return None
    by_bound = sorted(ledger.by_bound().items(), key=lambda item: -item[1].seconds)
    return StepTime(
        step_s=total.seconds,
        kernel_s=total.kernel_s,
        shares=tuple(
            (bound, part_of(subtotal.seconds, total.seconds))
            for bound, subtotal in by_bound
            if subtotal.seconds > 0
        ),
        is_host=roofline.is_host,
        range=time_range(ledger),
        slow_host=slow_host(ledger),
        calibration=roofline.calibration,
        calibrated_share=calibrated_share(ledger),
        utilisation=model_utilisation(ledger),
        split=model_split(ledger),
        throughput=throughput(ledger),
        network=network_time(ledger),
        untimed=ledger.untimed,
    )


def calibrated_share(ledger: Ledger) -> float:
    """Share of the kernels' time of operators that were measured on such a device."""
    if ledger.roofline is None or ledger.roofline.calibration is None:
        return 0.0
    slots = map(ledger.slot, ledger.reported)
    calibrated_s = fsum(slot.kernel_s for slot in slots if slot.is_calibrated)
    return part_of(calibrated_s, ledger.total.kernel_s)
