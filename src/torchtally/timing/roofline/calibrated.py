"""Corrections from measurements: how much longer calls like this one really took than modelled.

The model knows how work grows with a call's size; what it does not know (caches, vector units, tile
shapes, libraries' choices) shows in the ratio of measured to modelled time, which changes slowly
from size to size. So it is the logarithm of that ratio that is interpolated, over the logarithms of
the sizes.
"""

from collections.abc import Callable, Iterable
from math import exp, log
from typing import NamedTuple

from torchtally.timing.calibration import Features, Sample, features
from torchtally.timing.calibration.features import PRODUCT
from torchtally.timing.constants import NEAREST
from torchtally.timing.roofline.kernel import Kernel
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of

Model = Callable[[Call, Kind, Cost], Kernel]


class MeasuredRatio(NamedTuple):
    place: tuple[float, ...]
    """Logarithms of the size."""
    correction: float
    """Logarithm of measured over modelled."""


class Corrections:
    """Ratios of measured to modelled time, by family and variant."""

    def __init__(
        self,
        samples: Iterable[Sample],
        model: Model,
        reach: float = 0.0,
        *,
        has_rules: bool = False,
    ) -> None:
        self._reach = reach
        """`Calibration.reach`."""
        self._has_rules = has_rules
        """The model has rules for single operators, which say more of one that was not measured
        than others of its kind do."""
        self._points: dict[tuple[str, str], list[MeasuredRatio]] = {}
        self._variants: dict[str, list[str]] = {}
        self._families: dict[Kind, list[str]] = {}
        for sample in samples:
            self._add(sample, model)
        for (family, variant), points in self._points.items():
            points.sort()
            self._variants.setdefault(family, []).append(variant)

    def _add(self, sample: Sample, model: Model) -> None:
        kind, cost = cost_of(sample.call)
        modelled_s = model(sample.call, kind, cost).seconds
        if modelled_s <= 0 or sample.seconds <= 0:
            return
        position = features(sample.call, kind, cost)
        point = MeasuredRatio(tuple(map(log, position.size)), log(sample.seconds / modelled_s))
        self._points.setdefault((position.family, position.variant), []).append(point)
        families = self._families.setdefault(kind, [])
        if position.family not in families:
            families.append(position.family)

    def factor(self, call: Call, kind: Kind, cost: Cost) -> tuple[float, bool]:
        """(measured over modelled for a call of this size, calls like it were measured).

        Of an operator that was not: the middle of those of its kind, or 1 where the model has rules
        for each. Of a kind that was not: 1.
        """
        position = features(call, kind, cost)
        place = tuple(map(log, position.size))
        points = self._points_of(position, place)
        if points:
            return exp(interpolate(points, place) * self._trust(points, place)), True
        if self._reach or self._has_rules:
            return 1.0, False
        near = [
            interpolate(points, place)
            for family in self._families.get(kind, ())
            if (points := self._points_of(Features(family, position.variant, position.size), place))
        ]
        return (exp(middle(near)), False) if near else (1.0, False)

    def _trust(self, points: list[MeasuredRatio], place: tuple[float, ...]) -> float:
        """The part of a correction that holds so far from what was measured."""
        if not self._reach:
            return 1.0
        squared = min(distance(point.place, place) for point in points)
        return 1 / (1 + squared / self._reach**2)

    def _points_of(self, position: Features, place: tuple[float, ...]) -> list[MeasuredRatio]:
        """Measured ratios of the variant, else of one like it: the same operator, in another layout
        or dtype.

        Where there are rules, they say more of another layout; but a profiler's trace need not say
        how its products' operands lay.
        """
        variants = self._variants.get(position.family, ())
        variant = position.variant
        if variant not in variants and (position.family == PRODUCT or not self._has_rules):
            dtype = variant.partition(" ")[0]
            alike = (other for other in variants if other.partition(" ")[0] == dtype)
            variant = next(alike, next(iter(variants), ""))
        points = self._points.get((position.family, variant), [])
        return points if points and len(points[0].place) == len(place) else []


def middle(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]


def interpolate(points: list[MeasuredRatio], place: tuple[float, ...]) -> float:
    """Interpolation along a line between the two neighbours; in more dimensions by the inverse of
    distance.

    Beyond the last measured size its correction stands.
    """
    if len(place) == 1:
        return on_line(points, place[0])
    near = sorted((distance(point.place, place), point.correction) for point in points)[:NEAREST]
    if near[0][0] < 1e-12:
        return near[0][1]
    weights = [1 / distance for distance, _ in near]
    return sum(w * c for w, (_, c) in zip(weights, near, strict=True)) / sum(weights)


def on_line(points: list[MeasuredRatio], place: float) -> float:
    after = next((at for at, point in enumerate(points) if point.place[0] >= place), len(points))
    if after == 0 or after == len(points):
        return points[min(after, len(points) - 1)].correction
    (low,), first = points[after - 1]
    (high,), second = points[after]
    share = (place - low) / (high - low) if high > low else 1.0
    return first + share * (second - first)


def distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Squared."""
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
