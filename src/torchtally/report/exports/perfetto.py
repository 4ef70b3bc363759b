"""Tracks as a file that ui.perfetto.dev and chrome://tracing open: Chrome's trace event format.

A process for each rank, a thread for each track, microseconds with three decimals. The format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from torchtally.ledger import Ledger
from torchtally.report.exports import Exported, Wanted
from torchtally.views.tracks import RankTracks, Track, tracks_of

SUMMARY = "every stream, communicator and rank over time, for ui.perfetto.dev, chrome://tracing"
SUFFIX = ".trace.json"

Event = dict[str, Any]


MOST_SLICES = 100_000
"""Of operators; above, those of one line are folded. Perfetto's page takes a few times as many."""


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One document. Raises UsageError for a ledger without times."""
    ranks = tracks_of(ledger)
    whole = slice_count(ranks)
    if whole <= MOST_SLICES:
        return Exported({"": timeline_text(ledger, ranks)})
    ranks = tracks_of(ledger, is_folded=True)
    remark = (
        f"{whole} operators are folded into {slice_count(ranks)} slices, one for each run of "
        "operators from one line. --step N has fewer."
    )
    return Exported({"": timeline_text(ledger, ranks, remark)}, (remark,))


def slice_count(ranks: Sequence[RankTracks]) -> int:
    return sum(
        len(track.slices) for rank in ranks for track in rank.tracks if track.stream is not None
    )


def timeline_text(ledger: Ledger, ranks: Sequence[RankTracks], remark: str = "") -> str:
    """The reported period of every rank that ran, one event a line, ASCII only."""
    trace = ledger.trace
    about = {
        "exporter": "torchtally",
        "script": trace.script,
        "chip": trace.chip if ledger.roofline is None else ledger.roofline.chip.name,
        "period": ledger.period,
        "times": "measured" if ledger.is_measured else "predicted",
        **({"folded": remark} if remark else {}),
    }
    lines = ",\n".join(map(json.dumps, events(ranks)))
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'
        f"{lines}\n]}}\n"
    )


def events(ranks: Sequence[RankTracks]) -> Iterator[Event]:
    """Names first, then slices, memory and arrows of each rank."""
    arrows = 0
    for process, rank in enumerate(ranks):
        yield name_event("process_name", process, name=rank.name)
        yield name_event("process_sort_index", process, sort_index=process)
        for thread, (track, kind, place) in enumerate(lanes(rank)):
            yield name_event("thread_name", process, thread, name=track.name)
            yield name_event("thread_sort_index", process, thread, sort_index=place)
            for slice in track.slices:
                yield {
                    "ph": "X", "name": slice.name, "cat": kind,
                    "pid": process, "tid": thread, "ts": in_us(slice.start_ns),
                    "dur": in_us(slice.end_ns - slice.start_ns), "args": dict(slice.details),
                }  # fmt: skip
        for held in rank.held:
            for at_ns, held_bytes in held.points:
                yield {
                    "ph": "C",
                    "name": held.name,
                    "pid": process,
                    "ts": in_us(at_ns),
                    "args": {"bytes": held_bytes},
                }
        for arrow in rank.arrows:
            arrows += 1
            flow = {"cat": "wait", "name": "waits for", "id": arrows, "pid": process}
            yield {"ph": "s", **flow, "tid": arrow.from_track, "ts": in_us(arrow.from_ns)}
            yield {"ph": "f", "bp": "e", **flow, "tid": arrow.to_track, "ts": in_us(arrow.to_ns)}


def lanes(rank: RankTracks) -> Iterator[tuple[Track, str, int]]:
    """(track, kind of its slices, its place on the page): tracks by number, as arrows name them,
    then the code's, which are shown above the streams that they are of.
    """
    place_of: dict[int | None, int] = {}
    for number, track in enumerate(rank.tracks):
        place_of.setdefault(track.stream, 2 * number)
        yield track, "step" if track.stream is None else "operator", 2 * number + 1
    for track in rank.code:
        yield track, "code", place_of[track.stream]


def name_event(event: str, process: int, thread: int = 0, **args: str | int) -> Event:
    return {"ph": "M", "name": event, "pid": process, "tid": thread, "args": args}


def in_us(ns: int) -> float:
    return ns / 1000
