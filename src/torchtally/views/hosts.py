"""What a step takes beside other CPUs: those that issue its operators slower, or not at all."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchtally.ledger import Ledger
from torchtally.table import Column, Table
from torchtally.timing.calibration import Issue
from torchtally.timing.hosts import CLOUD, HOSTS, host_of
from torchtally.timing.roofline import Roofline
from torchtally.timing.roofline.launches import launches_of
from torchtally.timing.schedule import issue_by_phase, no_time
from torchtally.units import Unit
from torchtally.views.bounds import NO_TIMES
from torchtally.views.columns import part_of
from torchtally.views.view import view


@dataclass(frozen=True, slots=True)
class HostTime:
    """The reported period beside one CPU."""

    host: str
    issue_s: float
    """That it takes to issue all operators, waiting for nothing."""
    step_s: float
    idle_share: float
    """Of the period, in which the device waits for it, or starts the next kernel."""
    is_own: bool
    """The one that all other times are of."""


def host_times(ledger: Ledger) -> tuple[HostTime, ...]:
    """Times beside its own host and others; nothing without predicted times, or where the CPU
    computes.

    The first is of the kernels alone.
    """
    roofline = ledger.roofline
    if roofline is None or ledger.is_measured or roofline.is_host:
        return ()
    return tuple(_host_times(ledger, roofline))


def _host_times(ledger: Ledger, roofline: Roofline) -> Iterator[HostTime]:
    own_name = "this machine's, measured" if roofline.calibration else host_of(roofline.chip).name
    for host in HOSTS:
        if host.name != own_name:
            yield _beside(ledger.with_predicted_times(replace(roofline, host=host)), host.name)
        else:
            yield replace(_beside(ledger, own_name), is_own=True)
    if roofline.calibration is not None:
        yield replace(_beside(ledger, own_name), is_own=True)


def _beside(ledger: Ledger, name: str) -> HostTime:
    assert ledger.roofline is not None
    total = ledger.total
    idle_s = max(0.0, total.seconds - total.kernel_s)
    issue_s = issued_s(ledger, ledger.roofline.issue)
    return HostTime(name, issue_s, total.seconds, part_of(idle_s, total.seconds), is_own=False)


def issued_s(ledger: Ledger, issue: Issue) -> float:
    """Seconds of the host for the operators of the reported period."""
    by_call: dict[int, dict[int, float]] = {}
    seconds = 0.0
    for entry in ledger.reported:
        number = entry.op.call
        if number not in by_call:
            kind, cost, *_ = ledger.costs[number]
            extra = max(0, launches_of(entry.call, kind, cost) - 1)
            time = no_time(entry.call, kind)._replace(
                extra_launches=extra, is_compiled=entry.call.fused is not None
            )
            by_call[number] = issue_by_phase(issue, time)
        seconds += by_call[number][id(entry.op.phase)] * entry.share
    return seconds


MATTERS = 1.05
"""A slower host is worth a sentence where the step takes so many times as long beside it."""


def slow_host(ledger: Ledger) -> HostTime | None:
    """The step beside the slowest of the hosts; None where that changes little."""
    roofline = ledger.roofline
    if roofline is None or ledger.is_measured or roofline.is_host or roofline.calibration:
        return None
    if issued_s(ledger, CLOUD.issue) < ledger.total.kernel_s:  # the device is always behind it
        return None
    on_cloud = _beside(ledger.with_predicted_times(replace(roofline, host=CLOUD)), CLOUD.name)
    return on_cloud if on_cloud.step_s > MATTERS * ledger.total.seconds else None


COLUMNS = (
    Column("host", "CPU", Unit.NAME),
    Column("issue_s", "issues in", Unit.SECONDS, rank=2),
    Column("step_s", "step", Unit.SECONDS),
    Column("relative", "relative", Unit.FRACTION, rank=1),
    Column("idle_share", "GPU idle", Unit.FRACTION, rank=3),
)

NOTE = (
    "Issues in: how long the CPU takes to issue the operators of a step if it never waits; "
    "where kernels take less, it determines the step time. *: the CPU of all other times in "
    "this report. Rates are of published steps and layers (`tally bench` measures this "
    "machine's). Kernels alone: as in a CUDA graph of the whole step."
)


@view("host", "beside slower CPUs, and by its kernels alone", "time")
def hosts(ledger: Ledger) -> Table:
    """The step beside other CPUs."""
    times = host_times(ledger)
    own_s = ledger.total.seconds
    return Table(
        title="The step beside other CPUs",
        columns=COLUMNS,
        rows=tuple(
            (
                f"{time.host}{'  *' if time.is_own else ''}",
                time.issue_s,
                time.step_s,
                part_of(time.step_s, own_s),
                time.idle_share,
            )
            for time in times
        ),
        note=NOTE if times else _none(ledger),
    )


def _none(ledger: Ledger) -> str:
    if ledger.is_measured:
        return "Measured times are those of the CPU that ran: predict the script to see others."
    return "The CPU computes, too." if ledger.roofline is not None else NO_TIMES
