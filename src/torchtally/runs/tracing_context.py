"""Trace a block of code on a virtual GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

from torchtally.chips import Cluster
from torchtally.runs.request import RunRequest, simulation
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.tracer.session import Recording


@contextmanager
def tracing(
    script: str, target: Roofline, *, memory_is_limited: bool = True
) -> Iterator[Recording]:
    """Context in which "cuda" is the target's chip, and what it runs is recorded; no file is
    changed.

    `trace(ending)` of what is given returns it, called at the end of the block.
    """
    request = RunRequest(
        script=script, gpus=Cluster(target.chip), memory_is_limited=memory_is_limited
    )
    with simulation(request, prediction=Prediction(target)) as (isolated, session):
        try:
            yield session
        finally:
            isolated.tidy()
