"""Trace a block of code on a virtual GPU."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torchtally.isolation.run import isolation
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.tracer.session import Recording, recording
from torchtally.virtual.aliases import ReadOnce
from torchtally.virtual.session import check_inactive


def tracing(
    script: str, target: Roofline, *, memory_is_limited: bool = True
) -> AbstractContextManager[Recording]:
    """Within, "cuda" is the target's chip, and what it runs is recorded; no file is changed.

    `trace(ending)` of what is given returns it, called at the end of the block.
    """
    return ReadOnce(_tracing(script, target, memory_is_limited))


@contextmanager
def _tracing(script: str, target: Roofline, memory_is_limited: bool) -> Iterator[Recording]:
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
