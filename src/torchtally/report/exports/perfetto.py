"""Tracks as a file that ui.perfetto.dev and chrome://tracing open: Chrome's trace event format.

A process for each rank, a thread for each track, microseconds with three decimals. The format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from torchtally.ledger import Ledger
from torchtally.report.exports import Exported, Wanted
from torchtally.views.tracks import RankTracks, tracks_of

SUMMARY = "every stream, communicator and rank over time, for ui.perfetto.dev, chrome://tracing"
SUFFIX = ".trace.json"

Event = dict[str, Any]


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One document. Raises UsageError for a ledger without times."""
    return Exported({"": timeline_text(ledger)})


def timeline_text(ledger: Ledger) -> str:
    """The reported period of every rank that ran, one event a line, ASCII only.

    Raises UsageError for a ledger without times.
    """
    trace = ledger.trace
    about = {
        "script": trace.script,
        "chip": trace.chip if ledger.roofline is None else ledger.roofline.chip.name,
        "period": ledger.period,
    }
    lines = ",\n".join(map(json.dumps, events(tracks_of(ledger))))
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'
        f"{lines}\n]}}\n"
    )


def events(ranks: Sequence[RankTracks]) -> Iterator[Event]:
    """Names first, then slices, memory and arrows of each rank."""
    arrows = 0
    for process, rank in enumerate(ranks):
        yield named("process_name", process, name=rank.name)
        yield named("process_sort_index", process, sort_index=process)
        for thread, track in enumerate(rank.tracks):
            yield named("thread_name", process, thread, name=track.name)
            yield named("thread_sort_index", process, thread, sort_index=thread)
            for slice in track.slices:
                yield {
                    "ph": "X", "name": slice.name, "cat": category(track.stream),
                    "pid": process, "tid": thread, "ts": in_us(slice.start_ns),
                    "dur": in_us(slice.end_ns - slice.start_ns), "args": dict(slice.details),
                }  # fmt: skip
        for at_ns, held_bytes in rank.allocated:
            yield {
                "ph": "C", "name": "memory allocated", "pid": process, "ts": in_us(at_ns),
                "args": {"bytes": held_bytes},
            }  # fmt: skip
        for arrow in rank.arrows:
            arrows += 1
            flow = {"cat": "wait", "name": "waits for", "id": arrows, "pid": process}
            yield {"ph": "s", **flow, "tid": arrow.from_track, "ts": in_us(arrow.from_ns)}
            yield {
                "ph": "f", "bp": "e", **flow, "tid": arrow.to_track, "ts": in_us(arrow.to_ns),
            }  # fmt: skip


def category(stream: int | None) -> str:
    return "step" if stream is None else "operator"


def named(event: str, process: int, thread: int = 0, **args: str | int) -> Event:
    return {"ph": "M", "name": event, "pid": process, "tid": thread, "args": args}


def in_us(ns: int) -> float:
    return ns / 1000
