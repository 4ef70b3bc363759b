"""Measured runs of a script, one at a time, on this machine's GPU or a simulated one. No torch."""

import os
from contextlib import ExitStack
from dataclasses import replace

from msgspec import structs

from torchtally.runs.children import Children, EndedChild, sigterm_raises
from torchtally.runs.protocol import Device, DeviceRequest, MeasureRequest, Request
from torchtally.trace.measurement import Measurement, failed_measurement

PRELOAD = ("torchtally.runs.measure.main",)
GRACE_S = 3.0
"""From SIGTERM to SIGKILL."""


class Measurements:
    """A context in which runs are measured. On leaving it, one that still runs is ended.

    All see one GPU, as the simulated machine has one.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._children = Children("audit", preload=PRELOAD, grace_s=GRACE_S)

    def __enter__(self) -> "Measurements":
        self._stack.enter_context(sigterm_raises())
        self._stack.enter_context(self._children)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def device(self) -> Device:
        """The GPU of this machine."""
        child = self._run(DeviceRequest(), is_shown=False)
        device = child.answer(Device)
        if device is None:
            return Device("", 0, f"(it ended with {child.how})\n{child.output}")
        return structs.replace(device, remark=child.output)

    def measure(self, request: MeasureRequest) -> Measurement:
        """Run the script. What it prints is shown on stderr when it runs on the real GPU."""
        child = self._run(request, is_shown=request.gpu is None)
        measurement = child.answer(Measurement)
        if measurement is None:
            message = f"its process ended with {child.how}, without a result"
            return failed_measurement("killed", message, child.output)
        return replace(measurement, output=child.output)

    def _run(self, request: Request, *, is_shown: bool) -> EndedChild:
        # The first of the devices there are: a script on the simulated machine sees one, too.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": first}
        self._children.start("", request, environment=environment, is_shown=is_shown)
        while True:
            if ended_children := self._children.collect_ended(1.0):
                return ended_children[0]
