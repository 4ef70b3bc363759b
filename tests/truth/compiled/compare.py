"""What differs between two records of one case, and which of that is too much."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

Facts = Mapping[str, Any]

ROW = ("kind", "kernel", "nodes", "bytes read", "bytes written", "FLOPs", "operators")
LAUNCH = ("kernel", "operands", "bytes allocated", "bytes reserved")
MARK = ("allocated", "peak allocated", "reserved", "peak reserved", "launches")
"""Of a mark, after its step and its part."""

PEAK_TOLERANCE, RESERVED_TOLERANCE = 0.005, 0.05
"""Of what a steady step holds at most: the first step compiles, and is not held to it."""


class Difference(NamedTuple):
    what: str
    real: Any
    predicted: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.real} on the CUDA build, {self.predicted} predicted"


def differences(real: Facts, predicted: Facts) -> Iterator[Difference]:
    """All of them: in rows of the scheduler, launches, the memory at each and at the parts' ends,
    private pools, graph breaks and recompilations.
    """
    yield from exact(real, predicted)
    for number, (one, other) in enumerate(pairs(real, predicted, "launches")):
        if one is not None and other is not None and one[3] != other[3]:
            yield Difference(f"{LAUNCH[3]} at {launch(number, one)}", one[3], other[3])
    yield from in_marks(real, predicted)
    if real["pools"] != predicted["pools"]:
        yield Difference("private pools", real["pools"], predicted["pools"])


def failures(real: Facts, predicted: Facts) -> Iterator[Difference]:
    """Of the differences, those that a prediction may not have: rows, launches, operands, bytes
    allocated at each launch and graph breaks are equal; a steady step's peak is within 0.5 %,
    and what is reserved for it within 5 % of what a warm and a cold run reserve.
    """
    yield from exact(real, predicted)
    for mark in last_marks(real, predicted):
        what, warm, cold, recorded = mark
        tolerance = RESERVED_TOLERANCE if "reserved" in what else PEAK_TOLERANCE
        least, most = (warm, warm) if cold is None else (min(warm, cold), max(warm, cold))
        if not least * (1 - tolerance) <= recorded <= most * (1 + tolerance):
            yield Difference(
                what, warm if cold is None else f"{warm} (warm), {cold} (cold)", recorded
            )


def exact(real: Facts, predicted: Facts) -> Iterator[Difference]:
    """What has to be equal."""
    yield from in_graphs(real["graphs"], predicted["graphs"])
    for what, key in (("graph breaks", "breaks"), ("recompilations", "recompiles")):
        if real[key] != predicted[key]:
            yield Difference(what, real[key], predicted[key])
    for number, (one, other) in enumerate(pairs(real, predicted, "launches")):
        if one is None or other is None:
            yield Difference("launches", len(real["launches"]), len(predicted["launches"]))
            return
        for place in range(3):
            if one[place] != other[place]:
                what = f"{LAUNCH[place]} of {launch(number, one)}"
                yield Difference(what, one[place], other[place])


def pairs(real: Facts, predicted: Facts, key: str) -> Iterator[tuple[Any, Any]]:
    return zip_longest(real[key], predicted[key])


def launch(number: int, row: Sequence[Any]) -> str:
    return f"launch {number}, {row[0]}"


def in_graphs(real: Any, predicted: Any) -> Iterator[Difference]:
    for number, (one, other) in enumerate(zip_longest(real, predicted)):
        if one is None or other is None:
            yield Difference("graphs", len(real), len(predicted))
            return
        if one["backward"] != other["backward"]:
            yield Difference(f"direction of graph {number}", *(direction(g) for g in (one, other)))
        for row, (left, right) in enumerate(zip_longest(one["rows"], other["rows"])):
            if left is None or right is None:
                counts = len(one["rows"]), len(other["rows"])
                yield Difference(f"rows of graph {number}", *counts)
                break
            for what, mine, theirs in zip(ROW, left, right, strict=True):
                if mine != theirs:
                    yield Difference(f"{what} of row {row} of graph {number}", mine, theirs)


def direction(graph: Mapping[str, Any]) -> str:
    return "backward" if graph["backward"] else "forward"


def in_marks(real: Facts, predicted: Facts) -> Iterator[Difference]:
    for one, other in pairs(real, predicted, "marks"):
        if one is None or other is None or one[:2] != other[:2]:
            yield Difference("mark", one and one[:2], other and other[:2])
            return
        for place, what in enumerate(MARK, start=2):
            if one[place] != other[place]:
                yield Difference(
                    f"{what} after {one[1]} of step {one[0]}", one[place], other[place]
                )


def last_marks(real: Facts, predicted: Facts) -> Iterator[tuple[str, int, int | None, int]]:
    """(what, warm, cold, predicted) of the last step's peaks."""
    ends = [facts["marks"][-1] for facts in (real, predicted)]
    cold = real["cold"]["marks"][-1] if "cold" in real else None
    for place, what in enumerate(MARK, start=2):
        if what.startswith("peak"):
            yield f"{what} in the last step", ends[0][place], cold and cold[place], ends[1][place]


def signatures(facts: Facts) -> list[tuple[str, Any]]:
    """What is launched, on what."""
    return [(row[0], row[1]) for row in facts["launches"]]
