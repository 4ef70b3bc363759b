"""Stacks in speedscope's format: a profile for each quantity, in the order of time.

The format: https://www.speedscope.app/file-format-schema.json. Frames are shared by all profiles;
a sample is the frames of one stack, from the outermost on, with its amount as weight.
"""

import json
from typing import Any

from torchtally.ledger import Ledger
from torchtally.progress import printable
from torchtally.report.exports import Exported, Wanted
from torchtally.units import Unit
from torchtally.views.stacks import QUANTITIES, Level, StackTotals, stacks

SUMMARY = "time, FLOPs, bytes and memory by stack, for speedscope.app"
SUFFIX = ".speedscope.json"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNITS = {Unit.SECONDS: "nanoseconds", Unit.BYTES: "bytes", Unit.FLOPS: "none"}


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """All quantities, time first where it is known; of every rank that ran."""
    ranks = sorted((ledger, *ledger.others), key=lambda each: each.trace.world.rank)
    frames: dict[Level, int] = {}
    profiles: list[dict[str, Any]] = []
    missing: dict[str, None] = {}
    for rank in ranks:
        prefix = f"rank {rank.trace.world.rank}: " if ledger.others else ""
        for quantity in QUANTITIES:
            if quantity == "time" and not rank.is_timed:
                missing["Times are unknown, so there is no profile of time."] = None
                continue
            totals = stacks(rank, quantity)
            profiles.append(profile(totals, prefix, frames))
            missing |= {totals.missing: None} if totals.missing else {}
    document = {
        "$schema": SCHEMA,
        "exporter": "torchtally",
        "name": printable(f"{ledger.trace.script} on {ledger.trace.chip}"),
        "activeProfileIndex": 0,
        "shared": {"frames": [frame_record(level) for level in frames]},
        "profiles": profiles,
    }
    return Exported({"": json.dumps(document)}, tuple(missing))


def profile(totals: StackTotals, prefix: str, frames: dict[Level, int]) -> dict[str, Any]:
    """A sampled profile; frames that are new are added to the table."""
    return {
        "type": "sampled",
        "name": f"{prefix}{totals.title} ({totals.period})",
        "unit": UNITS[totals.unit],
        "startValue": 0,
        "endValue": totals.total,
        "samples": [
            [frames.setdefault(level, len(frames)) for level in levels] for levels, _ in totals.rows
        ],
        "weights": [amount for _, amount in totals.rows],
    }


def frame_record(level: Level) -> dict[str, str | int]:
    record: dict[str, str | int] = {"name": printable(level.name)}
    if level.file:
        record |= {"file": level.file.encode("utf-8", "replace").decode(), "line": level.line}
    return record
