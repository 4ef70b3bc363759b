"""Trace a block of code on a virtual GPU."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from torchtally.isolation.run import Isolation, isolation
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import Roofline
from torchtally.tracer.session import Recording, recording
from torchtally.virtual.aliases import ReadOnce
from torchtally.virtual.session import check_inactive


def tracing(
    script: str, target: Roofline, *, memory_is_limited: bool = True
) -> AbstractContextManager[Recording]:
    """Context in which "cuda" is the target's chip, and what it runs is recorded; no file is
    changed.

    `trace(ending)` of what is given returns it, called at the end of the block.
    """
    return ReadOnce(_tracing(script, target, memory_is_limited))


@contextmanager
def _tracing(script: str, target: Roofline, memory_is_limited: bool) -> Iterator[Recording]:
    check_inactive()
    record = partial(
        recording,
        target.chip,
        script=script,
        memory_is_limited=memory_is_limited,
        prediction=Prediction(target),
    )
    with _isolated_recording(isolation("isolated", None), record) as (isolated, session):
        try:
            yield session
        finally:
            isolated.tidy()


Record = Callable[..., AbstractContextManager[Recording]]
"""`recording` with all but what the isolation of files says: `written` and `facts`."""


def isolated_recording(
    files: AbstractContextManager[Isolation], record: Record
) -> AbstractContextManager[tuple[Isolation, Recording]]:
    """Context in which the script's files are isolated, and what it runs is recorded."""
    return ReadOnce(_isolated_recording(files, record))


@contextmanager
def _isolated_recording(
    files: AbstractContextManager[Isolation], record: Record
) -> Iterator[tuple[Isolation, Recording]]:
    with files as isolated, record(written=isolated.written, facts=isolated.facts) as session:
        yield isolated, session
