"""Many chips from a few runs: what they would allocate is computed, and the computation checked.

Chips on which a script runs the same operators are a family. Two runs on one of them, at small
values, say how everything grows; from that follows the largest value that fits each chip of the
family. A third run, at the largest of these, has to allocate exactly what was computed for it, byte
for byte. Where it does not, or where anything else speaks against it, the chips are left to a
search by runs.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from msgspec import structs

from torchtally.fit.chips import REDRAW_S, ChipSearch, Fleet, Probe
from torchtally.fit.extrapolate import Growth, NotLinearError, replay_allocations
from torchtally.fit.search import FIRST_VALUES, Bracket
from torchtally.runs.probes import Probes
from torchtally.runs.protocol import CapacityVerdict

CHECKED_FROM = 4
"""The check is at so many times the larger of the two first values, at least."""


@dataclass(slots=True)
class ChipFamily:
    """Chips on which the same operators run, and the runs that speak for them."""

    chips: list[ChipSearch]
    """The one simulated is the last, that with the most memory."""
    values: tuple[int, ...]
    """Of the first two runs."""
    probes: dict[int, Probe] = field(default_factory=dict)
    check_value: int | None = None
    growth: Growth | None = None
    answers: dict[str, Bracket] = field(default_factory=dict)
    verdicts: dict[str, dict[int, CapacityVerdict]] = field(default_factory=dict)
    """Computed, by chip."""
    is_done: bool = False
    why_not: str = ""
    """Why nothing can be computed from these runs; "" while nothing is known against it."""

    @property
    def simulated(self) -> ChipSearch:
        return self.chips[-1]

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                question for p in self.probes.values() for question in p.outcome.questions
            )
        )

    @property
    def wanted(self) -> tuple[int, ...]:
        """Values still to be run."""
        if self.why_not or self.is_done:
            return ()
        values = self.values if self.check_value is None else (self.check_value,)
        return tuple(number for number in values if number not in self.probes)


class Survey:
    """Computes answers for the chips of a fleet where possible; the fleet searches the rest."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.families: list[ChipFamily] = []
        values = fleet.searches[0].search.values
        self.first_values = tuple(
            dict.fromkeys(values.nearest(number * values.multiple) for number in FIRST_VALUES)
        )
        self._left = list(fleet.searches)
        """Chips in no family yet, by memory."""

    def run(
        self,
        runs: Probes,
        jobs: int,
        done: Callable[[Probe], None],
        waiting: Callable[[tuple[int, ...]], None] = lambda values: None,
    ) -> None:
        """Runs until every chip's answer is computed or given up."""
        while True:
            self.begin()
            running = set(runs.running)
            for family in self.families:
                for value in family.wanted:
                    key = (family.simulated.chip.name, value)
                    if key not in running and len(runs.running) < jobs:
                        self.start(runs, family, value)
            for family in self.families:
                self.think(family)
            if not runs.running:
                if any(family.wanted for family in self.families) or self._left:
                    continue
                return
            waiting(tuple(value for _, value in runs.running))
            finished = runs.next_result(REDRAW_S)
            if finished is not None:
                (name, value), outcome = finished
                family = next(
                    family for family in self.families if family.simulated.chip.name == name
                )
                probe = family.probes[value] = Probe(family.simulated.chip, value, outcome)
                self.fleet.probes[family.simulated.family, value] = probe
                done(probe)
                self.learn(family)

    def begin(self) -> None:
        """A family for the next chip, unless it may belong to one whose runs are on their way."""
        if self._left and not any(
            len(family.probes) < 2 and not family.why_not for family in self.families
        ):
            self.families.append(ChipFamily([self._left.pop()], self.first_values))
            if len(self.first_values) < 2:
                self.families[-1].why_not = "there are too few values to try"

    def start(self, runs: Probes, family: ChipFamily, value: int) -> None:
        chip = family.simulated.chip
        others = {search.family for search in self.fleet.searches} - {family.simulated.family}
        request = structs.replace(
            self.fleet.request,
            arguments=self.fleet.argument.among(self.fleet.request.arguments, value),
            gpu=chip.name,
            targets=tuple(sorted(others)),
            capacities=((family.simulated.capacity_bytes, chip.total_memory_bytes),),
        )
        runs.start((chip.name, value), request)

    def learn(self, family: ChipFamily) -> None:
        """A run of the family has ended."""
        failed = next((probe for probe in family.probes.values() if probe.outcome.failure), None)
        if failed is not None:
            family.why_not = f"the script fails at {failed.value}"
        elif not all(probe.outcome.verdicts for probe in family.probes.values()):
            family.why_not = "a run returned no result"
        if not family.why_not and not family.wanted and family.check_value is None:
            self.adopt(family)

    def think(self, family: ChipFamily) -> None:
        """What can be computed once the runs are there. It takes a while: others may run then."""
        if family.why_not or family.is_done or family.wanted:
            return
        try:
            if family.check_value is None:
                self.compute(family)
            else:
                self.check(family)
        except NotLinearError:
            family.why_not = "allocations do not grow along a straight line"

    def adopt(self, family: ChipFamily) -> None:
        """Take in the chips on which the same operators run."""
        outcomes = [probe.outcome for probe in family.probes.values()]
        alike = frozenset.intersection(*(outcome.alike for outcome in outcomes))
        if family.questions:
            alike = frozenset([family.simulated.family])
        joined = [search for search in self._left if search.family in alike]
        self._left = [search for search in self._left if search.family not in alike]
        family.chips = [*joined, *family.chips]

    def compute(self, family: ChipFamily) -> None:
        """Every chip's answer, and the value at which to check them."""
        small, large = (family.probes[index] for index in sorted(family.values))
        growth = family.growth = Growth(
            small.value,
            small.outcome.allocations,
            large.value,
            large.outcome.allocations,
            os.environ,
        )
        if not growth.is_alike:
            family.why_not = "runs at two values allocate different things"
            return
        points = [(probe.value, probe.outcome.peak_reserved_bytes) for probe in (small, large)]
        for each in family.chips:
            answer = largest(each, growth, points)
            family.answers[each.chip.name] = answer
            if answer.largest is not None:
                peaks = growth.peaks_at(answer.largest, each.capacity_bytes, each.chip)
                verdict = CapacityVerdict(
                    True, peaks.peak_allocated_bytes, peaks.peak_reserved_bytes
                )
                family.verdicts[each.chip.name] = {answer.largest: verdict}
        values = family.simulated.search.values
        least = values.nearest(large.value * CHECKED_FROM)
        most = max((answer.largest or 0) for answer in family.answers.values())
        family.check_value = max(least, most)
        if family.check_value in family.probes:
            family.why_not = "there are too few values to try"

    def check(self, family: ChipFamily) -> None:
        """Hold the computation against the last run; then the answers are what was computed."""
        assert family.growth is not None
        assert family.check_value is not None
        outcome = family.probes[family.check_value].outcome
        if not agrees(family.growth, family.probes[family.check_value]):
            family.why_not = f"a run at {family.check_value} allocates other than was computed"
            return
        if outcome.questions and not family.probes[family.values[0]].outcome.questions:
            family.why_not = f"at {family.check_value} the script asks the chip for its properties"
            return
        family.is_done = True
        for each in family.chips:
            each.verdicts.update(family.verdicts.get(each.chip.name, {}))
            each.search.settled = family.answers[each.chip.name]

    @property
    def computed(self) -> list[ChipFamily]:
        return [family for family in self.families if family.is_done]

    @property
    def given_up(self) -> list[ChipFamily]:
        return [family for family in self.families if family.why_not]

    def family_of(self, each: ChipSearch) -> ChipFamily | None:
        """The family whose runs a chip's answer was computed from."""
        return next((family for family in self.computed if each in family.chips), None)

    def was_run(self, each: ChipSearch) -> bool:
        """The chip's largest value is one that was run on it."""
        family = self.family_of(each)
        if family is None:
            return True
        is_simulated = each is family.simulated
        return is_simulated and each.bracket is not None and each.bracket.largest in family.probes


def agrees(growth: Growth, probe: Probe) -> bool:
    """A run allocated what was computed for it: the same things in the same order, and peaks."""
    outcome = probe.outcome
    computed = growth.at(probe.value)
    if computed != replace(outcome.allocations, calls=tuple(outcome.allocations.calls)):
        return False
    peaks = replay_allocations(computed, None, probe.chip, growth.environment)
    return (peaks.peak_allocated_bytes, peaks.peak_reserved_bytes) == (
        outcome.peak_allocated_bytes,
        outcome.peak_reserved_bytes,
    )


def largest(each: ChipSearch, growth: Growth, points: list[tuple[int, int]]) -> Bracket:
    """The largest value that fits by computation, and the next one, which does not.

    `points` are (value, bytes it needs) to guess by; what is found is added. Raises NotLinearError.
    """
    values, step = each.search.values, each.search.values.multiple

    def fits(value: int) -> bool:
        return growth.peaks_at(value, each.capacity_bytes, each.chip).fits

    low, high = values.first - step, values.last + step
    (x, needed), (x2, needed2) = sorted(points)[0], sorted(points)[-1]
    slope = max((needed2 - needed) / (x2 - x), 1.0)
    place, reach = values.nearest(x + max(each.capacity_bytes - needed, 0) / slope), step
    while low + step < high:
        place = min(max(place, low + step), high - step)
        if fits(place):
            low, place = place, place + reach
        else:
            high, place = place, place - reach
        reach *= 2
        if low >= values.first and high <= values.last and high - low <= reach:
            place, reach = values.nearest((low + high) / 2), step
    answer = Bracket(low if low >= values.first else None, high if high <= values.last else None)
    if answer.largest is not None:
        points.append((answer.largest, each.capacity_bytes))
    return answer
