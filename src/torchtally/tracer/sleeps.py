"""Has `time.sleep` of the script recorded: time of its step in which the host issues nothing."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torchtally.isolation.natives import TIME
from torchtally.tracer.recorder import Recorder
from torchtally.virtual.aliases import replacing
from torchtally.virtual.stand_ins import StandIn, apply


@contextmanager
def recorded_sleeps(recorder: Recorder) -> Iterator[None]:
    """Context in which the script sleeps as it asks to, and the recorder is told."""

    def sleep(seconds: float) -> None:
        begun = recorder.clock
        TIME.sleep(seconds)
        recorder.slept(float(seconds), begun, sys._getframe(1))

    with apply([StandIn(time, "sleep", sleep)]), replacing({TIME.sleep: sleep}):
        yield
