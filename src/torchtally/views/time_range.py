"""How far a predicted time may be off, by what it rests on."""

from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.timing.roofline import Bound, Roofline


@dataclass(frozen=True, slots=True)
class Error:
    """How far predicted times of one class were off what others measured, of |ratio - 1|."""

    median: float
    ninth: float
    """The ninth decile."""


ERRORS = {
    "calibrated": Error(0.112, 0.293),
    "fitted": Error(0.042, 0.114),
    "data sheet": Error(0.045, 0.175),
}
"""By what the time rests on: a calibration of the device (eleven models of `benchmarks/
cpu_step_time.py`); rates of the chip that somebody published (`Chip.is_measured`); what its data
sheet promises, and what its family reaches of that (forward passes and steps of
`benchmarks/single_gpu/`, eager)."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Seconds of the reported period: nine of ten such predictions were as near."""

    low_s: float
    likely_s: float
    high_s: float
    error: float
    """In the median."""
    basis: str
    """A class of `ERRORS`, or "measured" by a profiler, without an error."""
    rates_of: tuple[str, ...] = ()
    """Chips whose measurements it rests on, the chip itself first."""


def time_range(ledger: Ledger) -> TimeRange | None:
    """None without times."""
    roofline, step_s = ledger.roofline, ledger.step_s
    if roofline is None or step_s is None:
        return None
    if ledger.is_measured:
        return TimeRange(step_s, step_s, step_s, 0.0, "measured")
    basis = basis_of(roofline)
    error = ERRORS[basis]
    asleep = ledger.by_bound().get(Bound.SLEEP)
    sleep_s = asleep.seconds if asleep is not None else 0.0  # as long as the script says
    work_s = step_s - sleep_s
    low_s, high_s = work_s / (1 + error.ninth) + sleep_s, work_s / (1 - error.ninth) + sleep_s
    return TimeRange(low_s, step_s, high_s, error.median, basis, rates_of(roofline))


def rates_of(roofline: Roofline) -> tuple[str, ...]:
    """Chips whose published rates count; a calibration takes their place."""
    chip = roofline.chip
    if roofline.calibration is not None:
        return ()
    return (*((chip.name,) if chip.is_measured else ()), *chip.siblings)


def basis_of(roofline: Roofline) -> str:
    """What its times rest on: a class of `ERRORS`."""
    if roofline.calibration is not None:
        return "calibrated"
    return "fitted" if roofline.chip.is_measured else "data sheet"
