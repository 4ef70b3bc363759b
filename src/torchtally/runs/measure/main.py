"""`python -m torchtally.runs.measure`: run a script once, measured, on a real or a simulated GPU.

A process of its own, started by `runs.py`. The answer is a JSON document in a file (the script has
stdout and stderr): a `Measurement`, or the GPU's name where only that was asked for.
"""

import _thread
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torchtally.chips import chip
from torchtally.runs.measure.meter import Meter, device
from torchtally.tracer.script import Script, run
from torchtally.tracer.steps import Steps
from torchtally.tracer.stopper import Outcome, Stopper, flush_outputs
from torchtally.virtual.session import virtual_gpu
from torchtally.virtual.stand_ins import applied


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the one argument says: a JSON document as `runs.py` writes it."""
    asked = json.loads((sys.argv[1:] if argv is None else argv)[0])
    _die_with(asked["lifeline"])
    if asked["script"] is None:
        name, total_bytes = device()
        _write(asked["answer"], {"device": name, "total_memory_bytes": total_bytes})
        return 0
    script = Script(asked["script"], tuple(asked["arguments"]), is_module=asked["is_module"])
    meter = Meter()

    def said(step: int) -> None:
        if not stopper.is_in_child:
            meter.step_completed(step)
        if step >= asked["steps"]:
            stopper.steps_are_done()

    def leaving(outcome: Outcome) -> int:
        _write(asked["answer"], meter.measurement(outcome).to_json())
        return 0

    stopper = Stopper(leaving)
    steps = Steps(meter.roles, asked["steps"], said)
    with ExitStack() as stack:
        if asked["gpu"] is not None:
            stack.enter_context(virtual_gpu(chip(asked["gpu"])))
        stack.enter_context(applied(steps.stand_ins()))
        stack.enter_context(steps.watching())
        meter.start()
        code = leaving(run(script, stopper))
        flush_outputs()
        os._exit(code)  # threads of the script may still run, and nobody waits for them


def _die_with(lifeline: int) -> None:
    """End this process and all it started when the other end of the pipe closes."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    # Not a threading.Thread: the script's `threading.enumerate()` is its own.
    _thread.start_new_thread(wait, ())


def _write(path: str, document: dict[str, Any]) -> None:
    """Whole or not at all."""
    unfinished = f"{path}.unfinished"
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(unfinished, path)
