"""How deep a thread is: inside an operator, and in a dispatch mode."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OperatorDepth(threading.local):
    """How deep this thread is inside an operator, where tensors report their real device, meta."""

    depth = 0


INSIDE = OperatorDepth()


@contextmanager
def as_meta() -> Iterator[None]:
    """Context in which the properties of `shown_devices.py` answer "meta"."""
    INSIDE.depth += 1
    try:
        yield
    finally:
        INSIDE.depth -= 1


class Presence(threading.local):
    """How often this thread has entered a mode."""

    depth = 0
