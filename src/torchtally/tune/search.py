"""Which settings to run next, and which cannot win. No processes, no torch.

    search = TuneSearch(knobs, groups, most_runs)
    while (candidates := search.next_candidates(2)):
        for candidate in candidates:
            search.learn(candidate, points_of_a_run)

A *Pareto local search* (Paquete, Chiarandini, Stützle 2004) on each kind of GPU: from the fastest
settings known to those that differ in one knob, on from the first that is faster; where none is,
from the next best of the front, until every neighbour of the front was run. Where all combinations
are few enough, all of them are run.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import prod

from torchtally.chips import Cluster
from torchtally.chips.power import mean_power_watts
from torchtally.tune.knobs import LARGEST, Knob, Settings
from torchtally.tune.points import LEAST_GAIN, TunePoint, cost_of, front

CLIMB = 4
"""Of an open knob: how many times the last value the next one is, until one fails."""
STARTS = 3
"""Settings that were best on other chips, tried first on the next ones."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs on which a script runs the same operators: a run on the first answers for all."""

    gpus: tuple[str, ...]
    """The one with the most memory first."""
    clusters: tuple[Cluster, ...]

    @property
    def simulated(self) -> str:
        return self.gpus[0]


def groups_of(named: Iterable[tuple[str, Cluster]]) -> tuple[GpuGroup, ...]:
    """GPUs of one compilers' target and one arrangement together; the groups with the largest chips
    first.
    """
    alike: dict[object, list[tuple[str, Cluster]]] = {}
    for name, gpus in named:
        size = 1 if gpus.count == 1 else gpus.node_size
        alike.setdefault((gpus.chip.target, gpus.count, size), []).append((name, gpus))
    groups = []
    for members in alike.values():
        members.sort(key=lambda member: -member[1].chip.total_memory_bytes)
        names, clusters = zip(*members, strict=True)
        groups.append(GpuGroup(names, clusters))
    return tuple(sorted(groups, key=lambda group: -group.clusters[0].chip.total_memory_bytes))


@dataclass(frozen=True, slots=True)
class TuneCandidate:
    """Settings to run, on which GPUs."""

    settings: Settings
    gpus: str


@dataclass(slots=True)
class _Course:
    """The search on one group."""

    group: GpuGroup
    queue: deque[Settings] = field(default_factory=deque)
    started: set[Settings] = field(default_factory=set)
    expanded: set[Settings] = field(default_factory=set)
    climbing: Settings | None = None
    base: Settings | None = None
    """Whose neighbours are being run."""
    is_whole: bool = False
    """All combinations are run."""
    has_begun: bool = False
    runs: int = 0
    running: int = 0


class TuneSearch:
    """The search. `amount`: the tokens (samples, steps) of the training that is costed."""

    def __init__(
        self,
        knobs: tuple[Knob, ...],
        groups: Sequence[GpuGroup],
        most_runs: int,
        amount: int,
        rates: Mapping[str, float | None],
    ) -> None:
        """`rates`: USD per hour, by GPUs; None where no price is known."""
        self.knobs, self.most_runs, self.amount = knobs, most_runs, amount
        self.groups, self.rates = tuple(groups), rates
        self.points: dict[tuple[str, Settings], TunePoint] = {}
        self.pruned: set[tuple[str, Settings]] = set()
        """(GPUs, settings) that were not run since they cannot win."""
        self._courses = [_Course(group) for group in groups]
        self._started = 0

    @property
    def combinations(self) -> int | None:
        """How many settings there are; None where a knob is open."""
        if any(knob.is_open for knob in self.knobs):
            return None
        return prod(len(knob.values) for knob in self.knobs)

    @property
    def is_cut(self) -> bool:
        """The limit of runs ended it, and there were settings left to try."""
        return self._started >= self.most_runs and any(
            self._has_more(course) for course in self._courses
        )

    @property
    def share(self) -> float:
        """Share of the runs that there can be."""
        return min(self._started / self.most_runs, 1.0)

    def learn(self, candidate: TuneCandidate, points: Iterable[TunePoint]) -> None:
        """Take in what a run showed: of its GPUs, and of others of their group."""
        for point in points:
            known = self.points.get(point.key)
            if known is None or not known.was_run:
                self.points[point.key] = point
        course = self._course_of(candidate.gpus)
        course.running -= 1
        if course.climbing == candidate.settings:
            course.climbing = None
            if not self.points[candidate.gpus, candidate.settings].failure:
                self._climb(course, candidate.settings)
        self._follow(course, candidate.settings)

    def _follow(self, course: _Course, settings: Settings) -> None:
        """Go on from settings that are faster than those whose neighbours are being run: with the
        knob that made them so, then with the others in turn. What is left of the old neighbours is
        run later, where they are of the front.
        """
        was, course.base = course.base, settings
        if was is None or course.is_whole or not self._is_faster(course, settings, was):
            course.base = was
            return
        course.expanded.discard(was)
        course.expanded.add(settings)
        changed = _changed(settings, was)
        near = sorted(
            self._neighbours(settings), key=lambda each: (_changed(each, settings) - changed)
            % len(settings),
        )  # fmt: skip
        course.queue = deque(near)

    def _is_faster(self, course: _Course, settings: Settings, than: Settings) -> bool:
        """Whether one is faster by what counts as a gain, on the GPUs that are simulated."""
        simulated = course.group.simulated
        mine, theirs = (
            None if point is None else cost_of(point, self.amount)
            for point in (self.points.get((simulated, each)) for each in (settings, than))
        )
        return (
            mine is not None
            and theirs is not None
            and mine.seconds < theirs.seconds * (1 - LEAST_GAIN)
        )

    def recall(self, point: TunePoint) -> None:
        """Take in a point of an earlier search, at the price of this one."""
        rate = None if point.failure else self.rates[point.gpus]
        self.points[point.key] = replace(point, gpus_usd_per_hour=rate)

    def next_candidates(self, how_many: int) -> list[TuneCandidate]:
        """Settings to run now; none where those that run are waited for, or all is done."""
        found: list[TuneCandidate] = []
        while len(found) < how_many and self._started < self.most_runs:
            candidate = self._next()
            if candidate is None:
                break
            found.append(candidate)
            self._started += 1
        return found

    def unproved(self) -> list[TuneCandidate]:
        """Points of the front whose figures are of another chip's run."""
        shown = front(list(self.points.values()), self.amount)
        return [TuneCandidate(each.settings, each.gpus) for each in shown if not each.was_run]

    def prove(self, point: TunePoint) -> None:
        """A run of a point on its own GPUs takes the place of what was computed."""
        self.points[point.key] = point

    # Courses, one after the other: what is known of one begins the next.

    def _next(self) -> TuneCandidate | None:
        for is_shared in (True, False):  # what the last ones leave, the first ones take
            for course in self._courses:
                if is_shared and course.runs >= self._share_of(course):
                    continue
                settings = self._next_of(course)
                if settings is not None:
                    course.runs += 1
                    course.running += 1
                    return TuneCandidate(settings, course.group.simulated)
                if course.running:
                    return None  # its results say where to go on
        return None

    def _share_of(self, course: _Course) -> int:
        """Runs that a course may take: what those before it leave, shared with those behind it."""
        place = self._courses.index(course)
        spent = sum(each.runs for each in self._courses[:place])
        return max((self.most_runs - spent) // (len(self._courses) - place), 1)

    def _has_more(self, course: _Course) -> bool:
        if not course.has_begun or course.climbing is not None:
            return True
        near = (self._neighbours(each.settings) for each in self._front_of(course))
        return any(each not in course.started for each in chain(course.queue, *near))

    def _next_of(self, course: _Course) -> Settings | None:
        if not course.has_begun:
            course.has_begun = True
            self._begin(course)
        while True:
            while course.queue:
                settings = course.queue.popleft()
                if settings in course.started:
                    continue
                course.started.add(settings)
                known = self.points.get((course.group.simulated, settings))
                if known is not None and known.was_run:  # of an earlier search
                    self._recalled(course, settings, known)
                    continue
                if self._cannot_win(course.group, settings):
                    continue
                return settings
            if course.climbing is not None:
                return None
            best = next(
                (each for each in self._front_of(course) if each.settings not in course.expanded),
                None,
            )
            if best is None:
                return None
            course.expanded.add(best.settings)
            course.base = best.settings
            course.queue += self._neighbours(best.settings)

    def _recalled(self, course: _Course, settings: Settings, point: TunePoint) -> None:
        if course.climbing == settings:
            course.climbing = None
            if not point.failure:
                self._climb(course, settings)

    def _begin(self, course: _Course) -> None:
        first = tuple(knob.first for knob in self.knobs)
        combinations = self.combinations
        if combinations is not None and combinations * len(self._courses) <= self.most_runs:
            course.queue += product(*(knob.values for knob in self.knobs))
            course.is_whole = True
            return
        elsewhere = [point for point in self.points.values() if not point.failure]
        starts = front(elsewhere, self.amount)[:STARTS]
        course.queue += dict.fromkeys(point.settings for point in starts)
        course.queue.append(first)
        course.climbing = first

    def _climb(self, course: _Course, settings: Settings) -> None:
        """Go on with the first open knob, in large steps."""
        place = next((at for at, knob in enumerate(self.knobs) if knob.is_open), None)
        if place is None:
            return
        value = str(int(settings[place]) * CLIMB)
        if int(value) > LARGEST:
            return
        higher = (*settings[:place], value, *settings[place + 1 :])
        course.climbing = higher
        course.queue.append(higher)

    def _neighbours(self, settings: Settings) -> Iterator[Settings]:
        for place, knob in enumerate(self.knobs):
            for value in knob.neighbours(settings[place]):
                yield (*settings[:place], value, *settings[place + 1 :])

    def _front_of(self, course: _Course) -> list[TunePoint]:
        simulated = course.group.simulated
        return front([each for each in self.points.values() if each.gpus == simulated], self.amount)

    def _course_of(self, gpus: str) -> _Course:
        return next(course for course in self._courses if gpus == course.group.simulated)

    # Bounds.

    def _cannot_win(self, group: GpuGroup, settings: Settings) -> bool:
        """Whether settings win on none of a group's chips: a run elsewhere says what the step takes
        at least on each, and a point that was run is no worse than that.
        """
        elsewhere = [
            point
            for point in self.points.values()
            if point.settings == settings and point.was_run and group.simulated in point.floor_s
        ]
        if not elsewhere:
            return False
        known = elsewhere[0]
        rivals = [
            cost
            for point in self.points.values()
            if point.was_run and (cost := cost_of(point, self.amount)) is not None
        ]
        for gpus, cluster in zip(group.gpus, group.clusters, strict=True):
            if known.peak_allocated_bytes > cluster.chip.total_memory_bytes:
                continue
            least = cost_of(self._floor(known, gpus, cluster), self.amount)
            if least is None or not any(rival.is_no_worse(least) for rival in rivals):
                return False
        self.pruned |= {(gpus, settings) for gpus in group.gpus}
        return True

    def _floor(self, known: TunePoint, gpus: str, cluster: Cluster) -> TunePoint:
        """The best that a point can be on other GPUs: its step at the roofline, idle power, the
        bytes that its tensors take.
        """
        watts = cluster.chip.tdp_watts
        return replace(
            known,
            gpus=gpus,
            step_s=known.floor_s[gpus],
            peak_reserved_bytes=known.peak_allocated_bytes,
            gpus_usd_per_hour=self.rates[gpus],
            watts=None if watts is None else cluster.count * mean_power_watts(watts, 0.0),
        )


def _changed(settings: Settings, than: Settings) -> int:
    """The place of the first setting that differs."""
    return next(at for at, value in enumerate(settings) if value != than[at])
