"""Forms of values that only a whole training takes."""

from dataclasses import dataclass

from torchtally.errors import UsageError, did_you_mean
from torchtally.options import Form, among, duration, positive_count
from torchtally.plan.goodput.prices import read_prices
from torchtally.plan.goodput.rates import FailureRate, carbon_regions, rates

SCHEDULE = "schedule"
"""The stage that a spare node saves: finding another one."""
MOST_POWER_USAGE = 10
STAGE_NAMES = (SCHEDULE, "containers", "compile", "warm-up")


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """Interval between two saves: so many steps, seconds, or by the rate of failures."""

    steps: int | None = None
    seconds: float | None = None


def checkpoint_every(text: str) -> CheckpointInterval:
    """Interval of "auto", "500" or "30min"."""
    if text == "auto":
        return CheckpointInterval()
    if text.isdecimal():
        return CheckpointInterval(steps=positive_count(text))
    return CheckpointInterval(seconds=duration(text))


def failure_rate(text: str) -> float | FailureRate:
    """Seconds between failures of the job, or a published rate by its name."""
    if text[:1].isdigit():
        return duration(text)
    return among(rates())(text)


def power_usage(text: str) -> float:
    """Power usage effectiveness: 1.2, of all power over that of the machines."""
    try:
        ratio = float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number.") from None
    if not 1 <= ratio <= MOST_POWER_USAGE:
        raise UsageError(f"expected 1 to {MOST_POWER_USAGE}, got {text}.")
    return ratio


def stages(text: str) -> dict[str, float]:
    """Seconds by stage of "schedule=5min,compile=3min", or of all together of "10min"."""
    if "=" not in text:
        return {"restart": duration(text)}
    seconds = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        stage, _, amount = word.partition("=")
        if stage not in STAGE_NAMES:
            raise UsageError(f"{stage!r} is unknown. {did_you_mean(stage, STAGE_NAMES)}")
        seconds[stage] = duration(amount)
    return seconds


CHECKPOINT_EVERY = Form("auto|TIME|STEPS", checkpoint_every)
MTBF = Form("TIME|NAME", failure_rate)
PRICES = Form("FILE", read_prices)
PUE = Form("RATIO", power_usage)
REGION = Form("NAME", lambda text: among({name: name for name in carbon_regions()})(text))
STAGES = Form("TIME|STAGES", stages)
