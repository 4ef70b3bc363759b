"""`python -m torchtally.runs.probe`: run a script once and say what memory it needs.

A process of its own, started by `fit/runs.py`. The answer is a JSON document in a file (the
script has stdout and stderr): `Answer`, below.
"""

import _thread
import gc
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from torchtally.chips import chip
from torchtally.memory.allocator import replay
from torchtally.memory.allocator.replay import BORN, events
from torchtally.memory.workspace.kind import BLAS, SCRATCH
from torchtally.runs.probe.allocations import Allocations
from torchtally.runs.probe.differences import Differences
from torchtally.runs.probe.folding import Folding
from torchtally.trace import Ending, Storage, Trace
from torchtally.tracer.script import Script, run
from torchtally.tracer.steps import Steps
from torchtally.tracer.stopper import Outcome, Stopper, flush_outputs
from torchtally.tracer.what_if import stand_ins
from torchtally.virtual.session import VirtualGPU, virtual_gpu
from torchtally.virtual.stand_ins import applied


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the one argument says: a JSON document as `fit/runs.py` writes it."""
    asked = json.loads((sys.argv[1:] if argv is None else argv)[0])
    if asked["lifeline"] is not None:
        die_with(asked["lifeline"])
    script = Script(asked["script"], tuple(asked["arguments"]), is_module=asked["is_module"])
    recorder = Allocations()

    def said(step: int) -> None:
        if step >= asked["steps"]:
            stopper.steps_are_done()

    def leaving(outcome: Outcome) -> int:
        recorder.is_stopped = True
        gc.disable()  # much is made here that stays, and then the process ends
        found = answer(outcome.ending, recorder, folding, gpu, asked["capacities"])
        write(asked["answer"], found | shared(differences))
        return 0

    stopper = Stopper(leaving, max_seconds=asked["max_seconds"])
    steps = Steps(recorder, asked["steps"], said)
    with ExitStack() as stack:
        gpu = stack.enter_context(
            virtual_gpu(
                chip(asked["gpu"]),
                observer=recorder,
                nonzero_fraction=asked["nonzero_fraction"],
                memory_is_limited=False,
            )
        )
        stack.enter_context(applied(stand_ins(tuple(asked["what_ifs"]))))
        differences = Differences(
            gpu.chip, [tuple(capability) for capability in asked["capabilities"]]
        )
        stack.enter_context(applied(differences.stand_ins()))
        folding = Folding(recorder, gpu.mode, gpu.mode.gpus[0])
        if asked["folds"]:
            folding.watch_readers()
            stack.enter_context(applied(folding.stand_ins()))
        stack.enter_context(applied(steps.stand_ins()))
        stack.enter_context(steps.watching())
        code = leaving(run(script, stopper))
        flush_outputs()
        os._exit(code)  # threads of the script may still run, and nobody waits for them


def die_with(lifeline: int) -> None:
    """End this process and all it started when the other end of the pipe closes."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    # Not a threading.Thread: the script's `threading.enumerate()` is its own.
    _thread.start_new_thread(wait, ())


def answer(
    ending: Ending,
    recorder: Allocations,
    folding: Folding,
    gpu: VirtualGPU,
    capacities: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """What `fit/runs.py` reads: how the run ended, its peaks, and one verdict a capacity."""
    trace = recorder.trace(
        script="",
        chip=gpu.chip.name,
        ending=ending,
        facts={},
        allocator_settings=gpu.mode.gpus[0].allocator.settings.text,
    )
    peaks = gpu.peak_allocated_bytes, gpu.peak_reserved_bytes
    kept = [storage for storage in trace.storages if storage.number not in folding.storages]
    kept = [
        storage for storage in kept if storage.device == "cuda:0" and storage.name != SCRATCH.name
    ]
    return {
        "events": ordered(trace, kept, recorder.scratch),
        "sizes": [storage.requested_bytes for storage in kept],
        "blas": [n for n, storage in enumerate(kept) if storage.name == BLAS.name],
        "calls": msgspec.to_builtins(recorder.scratch_calls),
        "uses_streams": any(storage.stream for storage in kept),
        "ending": [ending.kind, ending.message],
        "steps": len(trace.step_ends),
        "peak_allocated_bytes": peaks[0],
        "peak_reserved_bytes": peaks[1],
        "folded": folding.folded,
        "refused": recorder.refused,
        "verdicts": [
            verdict(trace, peaks, recorder.refused, capacity_bytes, total_bytes)
            for capacity_bytes, total_bytes in capacities
        ],
    }


def ordered(trace: Trace, kept: Sequence[Storage], scratch: Sequence[tuple[int, int]]) -> list[int]:
    """As `runs.allocations.Allocations.events`: births, deaths and calls that take scratch."""
    numbers = {storage.number: n for n, storage in enumerate(kept, 1)}
    found: list[int] = []
    waiting = deque(scratch)
    for tick, order, storage in events(trace, "cuda:0"):
        while waiting and waiting[0][0] < tick:
            found.append(len(kept) + 1 + waiting.popleft()[1])
        if storage is None:
            found.append(0)
        elif storage.number in numbers:
            found.append(numbers[storage.number] * (1 if order == BORN else -1))
    return found + [len(kept) + 1 + call for _, call in waiting]


def shared(differences: Differences) -> dict[str, Any]:
    """For which other chips this run speaks."""
    return {"alike": sorted(differences.alike), "questions": differences.questions}


def verdict(
    trace: Trace, peaks: tuple[int, int], refused: str, capacity_bytes: int, total_bytes: int
) -> dict[str, Any]:
    """Whether the run fits into so much memory, and its peaks there.

    The run itself had no end of memory. Where that reserved no more than there is, a run with an
    end goes the same way. Else cached segments are given back, which only a replay can tell.
    """
    if peaks[1] <= capacity_bytes or refused:
        return {"fits": not refused, "peak_allocated_bytes": peaks[0],
                "peak_reserved_bytes": peaks[1]}  # fmt: skip
    replayed = replay(trace, capacity_bytes=capacity_bytes, total_bytes=total_bytes)
    if not replayed.fits:
        return {"fits": False, "peak_allocated_bytes": peaks[0], "peak_reserved_bytes": peaks[1]}
    return {"fits": True, "peak_allocated_bytes": replayed.peak_allocated_bytes,
            "peak_reserved_bytes": replayed.peak_reserved_bytes}  # fmt: skip


def write(path: str, document: dict[str, Any]) -> None:
    """Whole or not at all."""
    unfinished = f"{path}.unfinished"
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(unfinished, path)
