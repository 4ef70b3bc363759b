"""Which phase of which training step a host operator belongs to, and which line."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchtally.profiles import DeviceActivity, HostOperator, Profile
from torchtally.profiles.profile import NOWHERE
from torchtally.runs.explain.sites import Sites
from torchtally.trace import Phase

ENGINE = "autograd::engine::evaluate_function"
OPTIMIZER_STEP = "Optimizer.step#"
STEP = "ProfilerStep#"


class HostLaunch(NamedTuple):
    """What is to become operators of the trace: one of the host's, or kernels that have none."""

    at_us: float
    name: str
    arguments: int
    operator: int
    """NOWHERE for kernels without a host operator."""
    stack: int
    activities: tuple[DeviceActivity, ...]
    annotation: int
    """The innermost `record_function` around it; or NOWHERE."""


class Phases:
    """The phase and place of a host operator."""

    def __init__(self, profile: Profile, sites: Sites) -> None:
        self._operators = profile.operators
        self._annotations = profile.annotations
        self._sites = sites
        self._site_of_sequence: dict[int, int] = {}
        for operator in profile.operators:
            if operator.sequence >= 0 and not operator.forward_thread and operator.stack != NOWHERE:
                self._site_of_sequence.setdefault(operator.sequence, operator.stack)

    def of(self, launch: HostLaunch) -> tuple[Phase, int, int | None]:
        """(phase, site, number of the autograd node that it makes or that runs it)."""
        if self._is_in_optimizer(launch.annotation):
            return Phase.OPTIMIZER, self._sites.number(launch.stack), None
        if launch.operator == NOWHERE:
            return Phase.FORWARD, self._sites.number(launch.stack), None
        operator = self._operators[launch.operator]
        chain = [operator, *self._around(operator)]
        engine = next((each for each in chain if each.name.startswith(ENGINE)), None)
        if engine is None:
            sequence = next((each.sequence for each in chain if each.sequence >= 0), None)
            return Phase.FORWARD, self._sites.number(operator.stack), sequence
        recomputing = next(
            (each for each in chain if each.sequence >= 0 and each.sequence != engine.sequence
             and not each.forward_thread and not each.name.startswith(ENGINE)),
            None,
        )  # fmt: skip
        if recomputing is not None or self._sites.recomputes(operator.stack):
            # Makes autograd nodes while the engine runs: a recomputation in the backward pass.
            return (
                Phase.RECOMPUTE,
                self._sites.number(operator.stack),
                (None if recomputing is None else recomputing.sequence),
            )
        sequence = engine.sequence if engine.sequence >= 0 else None
        stack = operator.stack
        if sequence is not None:
            stack = self._site_of_sequence.get(sequence, stack)
        return Phase.BACKWARD, self._sites.number(stack), sequence

    def _around(self, operator: HostOperator) -> Iterator[HostOperator]:
        while operator.parent != NOWHERE:
            operator = self._operators[operator.parent]
            yield operator

    def _is_in_optimizer(self, annotation: int) -> bool:
        while annotation != NOWHERE:
            row = self._annotations[annotation]
            if row.name.startswith(OPTIMIZER_STEP):
                return True
            annotation = row.parent
        return False


def step_ends(profile: Profile, ticks_us: Sequence[float]) -> Iterator[int]:
    """Ticks at which the profiler's steps end; without any, those of optimizers' steps."""
    annotations = profile.annotations
    ends_us = [each.end_us for each in annotations if each.name.startswith(STEP)]
    if not ends_us:
        ends_us = last_of_each_update(profile)
    before = 0
    for end_us in sorted(ends_us):
        tick = bisect_left(ticks_us, end_us)
        if tick > before:
            before = tick
            yield tick


def last_of_each_update(profile: Profile) -> list[float]:
    """Ends of optimizers' steps that no other one follows before a backward pass."""
    updates = sorted(
        (each.start_us, each.end_us)
        for each in profile.annotations
        if each.name.startswith(OPTIMIZER_STEP)
    )
    backward_us = sorted(
        each.start_us for each in profile.operators if each.name.startswith(ENGINE)
    )
    ends: list[float] = []
    for place, (_, end_us) in enumerate(updates):
        following = updates[place + 1][0] if place + 1 < len(updates) else math.inf
        passes = bisect_left(backward_us, following) > bisect_left(backward_us, end_us)
        if following == math.inf or passes:
            ends.append(end_us)
    return ends
