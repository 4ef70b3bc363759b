"""The account of a run that goes on: its FLOPs, and the lines that take most of them so far."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Self

from torchtally.errors import UsageError
from torchtally.ledger.delegation import delegating_line, line_by, own_line
from torchtally.ledger.pricing import CallCost, call_cost
from torchtally.ledger.total import Line
from torchtally.timing.roofline import Roofline
from torchtally.timing.schedule import call_time
from torchtally.trace import Call, Frame, Op, Site, Use
from torchtally.work import Kind
from torchtally.work.convention import Convention

PlaceholderKey = tuple[Frame | None, str, str, Use]
"""The line, the operator that asked, what it was given, and what for."""

_row = attrgetter("site", "call")


@dataclass(frozen=True, slots=True)
class SoFar:
    """What operators took up to now: a quantity that adds."""

    flops: int = 0
    kernel_s: float = 0.0
    """Predicted, of each kernel by itself; 0 where the chip's speed is unknown."""

    def __add__(self, other: Self) -> "SoFar":
        return SoFar(self.flops + other.flops, self.kernel_s + other.kernel_s)

    @property
    def heat(self) -> tuple[float, int]:
        """Sort key of lines."""
        return self.kernel_s, self.flops


class RunningAccount:
    """What a run took so far, by its own operators: evaluation and all steps together.

    A recorder hands over its lists as they are (`Recorder.tell`); each operator is looked at once.
    A kernel that a compiler fused is its line's, whatever parts it has; a ledger tells these apart.
    """

    def __init__(self, roofline: Roofline | None, convention: Convention = Convention.FULL) -> None:
        self.roofline, self.convention = roofline, convention
        self.total = SoFar()
        self.uncounted = 0
        """Operators that no rule counts."""
        self.placeholders: Mapping[PlaceholderKey, int] = {}
        """How often each was given."""
        self._taken = 0
        self._costs: list[CallCost] = []
        self._kernels_s: list[float] = []
        self._of_sites: dict[int, SoFar] = {}
        """By the site's number."""
        self._lines: dict[int, Line | None] = {}
        """Of each of these sites."""
        self._of_lines: dict[Line | None, SoFar] = {}
        self._line_of: Callable[[Site], Line | None] = own_line
        self._sites_judged = 0

    def take(
        self,
        calls: Sequence[Call],
        sites: Sequence[Site],
        ops: Sequence[Op],
        placeholders: Mapping[PlaceholderKey, int],
    ) -> None:
        """All that has run so far, what was told before included."""
        new = ops[self._taken :]
        self._taken += len(new)
        for call in calls[len(self._costs) :]:
            self._price(call)
        for (site, call_number), count in Counter(map(_row, new)).items():
            if site not in self._lines:
                self._lines[site] = self._line_of(sites[site])
            self._add(site, call_number, count)
        self.placeholders = placeholders
        if len(self._of_sites) > 2 * self._sites_judged:
            self._judge_delegation(sites)

    def hottest(self, count: int) -> list[tuple[Line | None, SoFar]]:
        """The lines that took most time up to now; without times, most FLOPs."""
        ordered = sorted(self._of_lines.items(), key=lambda item: item[1].heat, reverse=True)
        return ordered[:count]

    def _judge_delegation(self, sites: Sequence[Site]) -> None:
        """Whether one line hands the work to a library, asked whenever twice as many sites ran."""
        self._sites_judged = len(self._of_sites)
        flops = [(sites[site], so_far.flops) for site, so_far in self._of_sites.items()]
        self._line_of = line_by(delegating_line(flops))
        self._lines = {site: self._line_of(sites[site]) for site in self._of_sites}
        self._of_lines = {}
        for site, line in self._lines.items():
            self._of_lines[line] = self._of_lines.get(line, SoFar()) + self._of_sites[site]

    def _price(self, call: Call) -> None:
        cost = call_cost(call, self.convention)
        self._costs.append(cost)
        kernel_s = 0.0
        if self.roofline is not None:
            try:
                kernel_s = call_time(call, cost.kind, cost.cost, self.roofline).kernel.seconds
            except UsageError:  # the report at the end lists it as not timed
                kernel_s = 0.0
        self._kernels_s.append(kernel_s)

    def _add(self, site: int, call_number: int, count: int) -> None:
        cost = self._costs[call_number]
        new = SoFar(cost.cost.flops * count, self._kernels_s[call_number] * count)
        line = self._lines[site]
        self._of_sites[site] = self._of_sites.get(site, SoFar()) + new
        self._of_lines[line] = self._of_lines.get(line, SoFar()) + new
        self.total += new
        if cost.failure or cost.kind is Kind.UNCOUNTED:
            self.uncounted += count
