"""Options of a run on a simulated GPU: those of a command, a cell, a function and a probe alike.
No torch.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

from torchtally.options import COUNT, Form, OptionGroup, OptionRecord, each, option
from torchtally.units import parse_fraction

Writes = Literal["isolated", "real"]
"""Where a script's files go: to a folder of the run, or where the script says."""

Network = Literal["off", "downloads", "on"]
"""What of the network a script may use: nothing, all but what publishes, or everything."""

SIMULATION = OptionGroup("simulation")


@dataclass(frozen=True, kw_only=True)
class IsolationOptions(OptionRecord):
    """What a script may change and send."""

    writes: Writes = option(
        "--writes",
        SIMULATION,
        "isolated (default): what the script writes goes to a folder of the run, and existing "
        "files are not changed; real: the script writes as it does without tally",
        choices=each("isolated", "real"),
        default="isolated",
    )
    network: Network = option(
        "--network",
        SIMULATION,
        "downloads (default): what would publish something is not sent, and what else is sent is "
        "listed; off: no connection; on: as without tally",
        choices=each("off", "downloads", "on"),
        default="downloads",
    )


@dataclass(frozen=True, kw_only=True)
class ValueOptions(IsolationOptions):
    """Values that a simulation does not know, too."""

    nonzero_fraction: float = option(
        "--nonzero-fraction",
        SIMULATION,
        "share of a mask assumed to be true where a shape depends on unknown values (default 1: "
        "the upper bound)",
        Form("F", parse_fraction),
        default=1.0,
    )
    placeholder_limit: int = option(
        "--placeholder-limit",
        SIMULATION,
        "stop a loop whose condition reads N unknown values without an optimizer step in between "
        "(default 10,000)",
        COUNT,
        default=10_000,
    )


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(ValueOptions):
    """A GPU's memory and the script's clocks, too."""

    memory_is_limited: bool = option(
        "--no-oom",
        SIMULATION,
        "go on beyond the chip's memory instead of raising torch.OutOfMemoryError (OOM)",
        turns_off=True,
    )
    host_clock: bool = option(
        "--host-clock",
        SIMULATION,
        "the script's own clocks (time.time, perf_counter, ...) read host time instead of "
        "predicted time",
    )


def simulation_settings(options: SimulationOptions) -> dict[str, Any]:
    """The fields of these options alone, for a request that has them."""
    return {each.name: getattr(options, each.name) for each in fields(SimulationOptions)}
