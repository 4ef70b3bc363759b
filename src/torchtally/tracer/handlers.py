"""The script's signal handlers, kept out of our finalizers.

On a GPU no Python runs when a tensor's storage is freed; here `VirtualStorage.__del__` does. What a
handler raises there is dropped: CPython reports an error in `tp_finalize` by sys.unraisablehook and
goes on (`slot_tp_finalize` in Objects/typeobject.c). A handler that ends the script by sys.exit()
would not end it. So a signal that arrives in a finalizer of ours is sent again after it.
"""

import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torchtally.virtual.stand_ins import StandIn, apply
from torchtally.virtual.storage import VirtualStorage
from torchtally.virtual.values import HeldBytes

Handler = Callable[[int, FrameType | None], Any]


@dataclass(frozen=True, slots=True)
class GuardedHandler:
    """A handler of the script's, called outside our finalizers."""

    handler: Handler
    send_later: Callable[[int], None]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if is_in_finalizer(frame):
            self.send_later(number)
        else:
            self.handler(number, frame)


def callbacks(collection: type) -> Iterator[CodeType]:
    """What a weak collection has called when an element dies: functions within its `__init__`."""
    for constant in collection.__init__.__code__.co_consts:  # type: ignore[misc]
        if isinstance(constant, CodeType):
            yield constant


FINALIZERS = frozenset(
    id(code)
    for code in (
        VirtualStorage.__del__.__code__,
        HeldBytes.__del__.__code__,
        weakref.finalize.__call__.__code__,
        *callbacks(weakref.WeakSet),
        *callbacks(weakref.WeakKeyDictionary),
        *callbacks(weakref.WeakValueDictionary),
    )
)
"""Ids of the code that runs where storages, modules and optimizers end, which are watched; CPython
drops errors of a weak reference's callback, too (`handle_callback` in Objects/weakrefobject.c)."""


def is_in_finalizer(frame: FrameType | None) -> bool:
    """Whether a finalizer is at work in this frame or below it on the stack."""
    while frame is not None and id(frame.f_code) not in FINALIZERS:
        frame = frame.f_back
    return frame is not None


@contextmanager
def guarding_handlers(send_later: Callable[[int], None]) -> Iterator[None]:
    """Context in which `signal.signal` guards Python handlers; `signal.getsignal` returns them as
    set.
    """
    native_set, native_get = signal.signal, signal.getsignal

    def set_handler(number: int, handler: Any) -> Any:
        # Python's own handler of SIGINT is C code: the stopper sends SIGINT again by itself.
        if callable(handler) and handler is not signal.default_int_handler:
            handler = GuardedHandler(handler, send_later)
        return script_handler(native_set(number, handler))

    def get_handler(number: int) -> Any:
        return script_handler(native_get(number))

    stand_ins = [StandIn(signal, "signal", set_handler), StandIn(signal, "getsignal", get_handler)]
    with apply(stand_ins):
        yield


def script_handler(handler: Any) -> Any:
    return handler.handler if isinstance(handler, GuardedHandler) else handler
