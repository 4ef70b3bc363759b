"""Replacements in torch while a virtual GPU is active: a table, undone as a whole."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.torch_private.needs import lost_names
from torchtally.torch_private.places import PrivateName

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class StandIn:
    """`owner.name` is `value` during the session."""

    owner: Any
    name: str
    value: Any
    is_new: bool = False
    """Not every build of torch has it."""


def instead_of(name: PrivateName, value: Any, *, is_new: bool = False) -> StandIn:
    """Of a private name of torch's."""
    return StandIn(name.owner, name.name, value, is_new)


def check_owners(stand_ins: list[StandIn]) -> None:
    """Raise UnsupportedError for what is no longer there: its stand-in would not be asked.

    A build for CPUs lacks calls of CUDA's, which all have one owner.
    """
    lost = [
        (f"{stand_in.owner.__name__}.{stand_in.name}", "it is replaced while a GPU is simulated")
        for stand_in in stand_ins
        if isinstance(stand_in.owner, (ModuleType, type)) and stand_in.owner is not private.BUILD
        if not (stand_in.is_new or hasattr(stand_in.owner, stand_in.name))
    ]
    if lost:
        raise UnsupportedError(lost_names(lost))


Replaced = tuple[Any, str, Any, Any]
"""(owner, name, what was there or `_ABSENT`, what is there now)."""

_active: dict[int, Replaced] = {}
"""Everything that is replaced, in order, by its id: torch's functions compare as they like."""


@contextmanager
def apply(stand_ins: Iterable[StandIn]) -> Iterator[None]:
    """Put every stand-in in place; on the way out put back exactly what was there."""
    replaced: list[Replaced] = []
    try:
        for stand_in in stand_ins:
            before = vars(stand_in.owner).get(stand_in.name, _ABSENT)
            value = as_function(stand_in.value)
            name_after(value, stand_in)
            each = (stand_in.owner, stand_in.name, before, value)
            replaced.append(each)
            _active[id(each)] = each
            setattr(stand_in.owner, stand_in.name, value)
        yield
    finally:
        for each in reversed(replaced):
            put_back(each)
            del _active[id(each)]


def put_back(replaced: Replaced) -> None:
    owner, name, before, _ = replaced
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


@contextmanager
def suspend() -> Iterator[None]:
    """Within, torch is as it was: for what binds its functions when it is imported."""
    replaced = dict(_active)
    _active.clear()
    for each in reversed(replaced.values()):
        put_back(each)
    try:
        yield
    finally:
        for owner, name, _, value in replaced.values():
            setattr(owner, name, value)
        _active.update(replaced)


@contextmanager
def native_methods(owner: type, *, native: bool = True) -> Iterator[None]:
    """Within, a class's methods are torch's; with `native=False` those of the session again. What
    it answers by properties stays.
    """
    methods = [
        each for each in _active.values() if each[0] is owner and isinstance(each[3], FunctionType)
    ]
    turn(methods, native=native)
    try:
        yield
    finally:
        turn(methods, native=not native)


def turn(replaced: Iterable[Replaced], *, native: bool) -> None:
    for each in replaced:
        if native:
            put_back(each)
        else:
            setattr(each[0], each[1], each[3])


def active() -> list[Replaced]:
    """All that is replaced now and was there before."""
    return [each for each in _active.values() if each[2] is not _ABSENT]


def name_after(value: Any, stand_in: StandIn) -> None:
    """A nameless function has the name of what it stands for: the compiler's messages say it."""
    if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
        owner = getattr(stand_in.owner, "__name__", "")
        value.__name__ = stand_in.name
        value.__qualname__ = f"{owner}.{stand_in.name}" if owner else stand_in.name


def as_function(value: Any) -> Any:
    """A bound method as a plain function: torch's compiler registers functions by type."""
    if not isinstance(value, MethodType):
        return value

    def function(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    function.__name__, function.__doc__ = value.__name__, value.__doc__
    return function
