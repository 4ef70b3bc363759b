"""What a GPU does at every moment of a run, and for which operator.

A moment is computing, if a kernel that computes runs; else the network's, if a collective runs,
which is exposed then, or waits for other ranks; else the device is idle until the host has issued
the next operator. `timing/streams.py` has the same as sums, by operator.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from torchtally.timing.ranks import Span
from torchtally.timing.streams import Covered


class Occupation(StrEnum):
    """What a GPU does."""

    COMPUTING = "computing"
    NETWORK = "exposed network"
    WAITING = "waiting for ranks"
    IDLE = "idle for the host"


class Moment(NamedTuple):
    """A stretch of time that belongs to one operator."""

    place: int
    """Of the operator."""
    occupation: Occupation
    start_s: float
    end_s: float


def moments(spans: Sequence[Span], is_network: Sequence[bool]) -> Iterator[Moment]:
    """Moments from the beginning until the device is done, in any order; no two at one time."""
    places = [place for place, span in enumerate(spans) if span.end_s > span.start_s]
    places.sort(key=lambda place: spans[place].start_s)
    compute, network, busy = Covered(), Covered(), Covered()
    for place in places:
        if not is_network[place]:
            yield from _new(compute, place, spans[place], Occupation.COMPUTING)
    for place in places:
        span = spans[place]
        done_s = busy.ends_s[-1] if busy.ends_s else 0.0
        if span.start_s > done_s:
            yield Moment(place, Occupation.IDLE, done_s, span.start_s)
        busy.add(span)
        if not is_network[place]:
            continue
        for moment in _new(network, place, span, Occupation.NETWORK):
            met_s = min(max(moment.start_s, span.start_s + span.waiting_s), moment.end_s)
            for start_s, end_s in compute.gaps(moment.start_s, met_s):
                yield Moment(place, Occupation.WAITING, start_s, end_s)
            for start_s, end_s in compute.gaps(met_s, moment.end_s):
                yield Moment(place, Occupation.NETWORK, start_s, end_s)


def _new(covered: Covered, place: int, span: Span, occupation: Occupation) -> Iterator[Moment]:
    """The part of a span that was in none before it."""
    start_s = max(span.start_s, covered.ends_s[-1] if covered.ends_s else 0.0)
    if covered.add(span):
        yield Moment(place, occupation, start_s, span.end_s)
