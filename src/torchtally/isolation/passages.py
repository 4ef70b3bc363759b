"""The functions of clients that what they publish passes through, and a gate there."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from inspect import iscoroutinefunction, unwrap
from types import FrameType, MethodType
from typing import Any, NamedTuple

from torchtally.errors import TallyError
from torchtally.isolation.audit import Report
from torchtally.isolation.publishing import WHY, HttpAnswer, HttpRequest, answer, publisher
from torchtally.isolation.threads import OtherThreads
from torchtally.trace import EffectKind
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn


class RefusedUploadError(TallyError, PermissionError):
    """Something that would have been published, where a client has no answer to go on with."""


passing: ContextVar[bool] = ContextVar("passing", default=False)
"""Whether an upper layer has let this request go already."""


@contextmanager
def let_pass() -> Iterator[None]:
    """Context in which the layers below ask nothing."""
    token = passing.set(True)
    try:
        yield
    finally:
        passing.reset(token)


class Gate:
    """Decides on each request of a run, and reports what it decided."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._other_threads = OtherThreads()

    @property
    def is_in_other_thread(self) -> bool:
        """One that ran before the run."""
        return self._other_threads.is_current

    @property
    def is_open(self) -> bool:
        return passing.get() or self.is_in_other_thread

    def answer(self, request: HttpRequest, frame: FrameType | None) -> HttpAnswer | None:
        """What the script gets in place of the server's answer; None: the request is made."""
        by = publisher(request, frame)
        if by is not None:
            shown = request.host if by == request.host else f"{request.host} ({by})"
            self.withhold(f"{request.method} {shown}", frame)
            return answer(request)
        if request.changes:
            self._report(EffectKind.SENT, request.host, frame)
        return None

    def withhold(self, shown: str, frame: FrameType | None) -> None:
        self._report(EffectKind.WITHHELD, shown, frame)


class ClientCall(NamedTuple):
    """A call of a client that is about to be made."""

    gate: Gate
    module: Any
    name: str
    native: Callable[..., Any]
    frame: FrameType | None

    def withhold(self, shown: str) -> None:
        self.gate.withhold(shown, self.frame)

    def refuse(self, shown: str) -> RefusedUploadError:
        """Report it, and what to raise in its place."""
        self.withhold(shown)
        return RefusedUploadError(f"{shown}: {WHY}.")


MADE: Any = object()
"""In place of an answer: the call is made."""


class Passage(NamedTuple):
    """Functions of one owner."""

    module: str
    owner: str
    """A class of the module; "" for the module itself."""
    names: str
    """A pattern of whole names."""
    answer: Callable[..., Any]
    """Takes the call and its arguments, and returns what the script gets, or MADE. Where the
    function is awaited, so is the answer.
    """


def replacements(passages: Iterable[Passage], gate: Gate) -> list[tuple[str, Replacements]]:
    """What is replaced, by module."""
    return [(each.module, partial(gated, each, gate)) for each in passages]


def gated(passage: Passage, gate: Gate, module: Any) -> list[StandIn]:
    """Nothing where this version of the client has no such functions."""
    owner = getattr(module, passage.owner, None) if passage.owner else module
    names = [] if owner is None else filter(re.compile(passage.names).fullmatch, dir(owner))
    natives = {name: native for name in names if callable(native := getattr(owner, name))}
    replaced = {
        native: asking(passage, ClientCall(gate, module, name, native, None))
        for name, native in natives.items()
    }
    functions = {  # methods of one object, which the module has as functions
        name: MethodType(replaced[value.__func__], value.__self__)
        for name, value in vars(module).items()
        if isinstance(value, MethodType) and value.__func__ in replaced
    }
    return [
        *(StandIn(owner, name, replaced[native]) for name, native in natives.items()),
        *(StandIn(module, name, value) for name, value in functions.items()),
    ]


def asking(passage: Passage, call: ClientCall) -> Callable[..., Any]:
    """The function, which asks first."""
    native, gate = call.native, call.gate

    def answered(frame: FrameType, args: Any, options: Any) -> Any:
        if gate.is_open:
            return MADE
        return passage.answer(call._replace(frame=frame), *args, **options)

    if iscoroutinefunction(unwrap(native)):

        @wraps(native)
        async def awaited(*args: Any, **options: Any) -> Any:
            value = answered(sys._getframe(1), args, options)
            if value is not MADE:
                return value
            with let_pass():
                return await native(*args, **options)

        return awaited

    @wraps(native)
    def stand_in(*args: Any, **options: Any) -> Any:
        value = answered(sys._getframe(1), args, options)
        if value is not MADE:
            return value
        with let_pass():
            return native(*args, **options)

    return stand_in
