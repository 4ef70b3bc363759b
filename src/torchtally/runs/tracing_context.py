"""Trace a block of code on a virtual GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

from torchtally.isolation.run import isolation
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.tracer.session import Recording, recording
from torchtally.virtual.session import check_inactive


@contextmanager
def tracing(
    script: str, target: Roofline, *, memory_is_limited: bool = True
) -> Iterator[Recording]:
    """Within, "cuda" is the target's chip, and what it runs is recorded; no file is changed.

    `trace(ending)` of what is given returns it, called at the end of the block.
    """
    check_inactive()
    with (
        isolation("isolated", None) as isolated,
        recording(
            target.chip,
            script=script,
            memory_is_limited=memory_is_limited,
            prediction=Prediction(target),
            written=isolated.written,
            facts=isolated.facts,
        ) as session,
    ):
        try:
            yield session
        finally:
            isolated.tidy()
