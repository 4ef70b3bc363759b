"""What differs between two records of one case."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple


class Difference(NamedTuple):
    what: str
    real: Any
    predicted: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.real} on the CUDA build, {self.predicted} predicted"


def differences(real: Mapping[str, Any], predicted: Mapping[str, Any]) -> Iterator[Difference]:
    """In rows of the scheduler, launches, memory at each, graph breaks, and at the parts' ends."""
    yield from in_graphs(real["graphs"], predicted["graphs"])
    if real["breaks"] != predicted["breaks"]:
        yield Difference("graph breaks", real["breaks"], predicted["breaks"])
    pairs = zip_longest(real["launches"], predicted["launches"])
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            counts = len(real["launches"]), len(predicted["launches"])
            yield Difference("launches", *counts)
            break
        for place, what in enumerate(("kernel", "operands", "bytes allocated", "bytes reserved")):
            if one[place] != other[place]:
                yield Difference(f"{what} of launch {number}, {one[0]}", one[place], other[place])
    for one, other in zip_longest(real["marks"], predicted["marks"]):
        for place, what in enumerate(MARKS, start=2):
            if one is None or other is None or one[place] != other[place]:
                whose = (one or other)[:2]
                yield Difference(
                    f"{what} after {whose[1]} of step {whose[0]}",
                    one and one[place],
                    other and other[place],
                )


MARKS = ("allocated", "peak allocated", "reserved", "peak reserved", "launches")


def in_graphs(real: Any, predicted: Any) -> Iterator[Difference]:
    for number, (one, other) in enumerate(zip_longest(real, predicted)):
        if one is None or other is None:
            yield Difference("graphs", len(real), len(predicted))
            return
        for row, (left, right) in enumerate(zip_longest(one["rows"], other["rows"])):
            if left != right:
                yield Difference(f"row {row} of graph {number}", left, right)
