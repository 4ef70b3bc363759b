"""Replacements in torch while a virtual GPU is active: a table, undone as a whole."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
    """Stand-in of a private name of torch's."""
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
    """Put every stand-in in place; on the way out put back exactly what was there.

    One that cannot be put back, or is gone already, keeps no other from it.
    """
    with ExitStack() as stack:
        for stand_in in stand_ins:
            before = vars(stand_in.owner).get(stand_in.name, _ABSENT)
            value = as_function(stand_in.value)
            name_after(value, stand_in)
            each = (stand_in.owner, stand_in.name, before, value)
            _active[id(each)] = each
            stack.callback(_active.pop, id(each), None)
            stack.callback(put, stand_in.owner, stand_in.name, before)
            put(stand_in.owner, stand_in.name, value)
        yield


def put(owner: Any, name: str, value: Any) -> None:
    """Give a name its value; with `_ABSENT`, none."""
    if value is not _ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


@contextmanager
def suspend() -> Iterator[None]:
    """Context in which torch is as it was: for what binds its functions when it is imported."""
    replaced = dict(_active)
    _active.clear()
    try:
        with turned(list(replaced.values()), native=True):
            yield
    finally:
        _active.update(replaced)


@contextmanager
def native_methods(owner: type, *, native: bool = True) -> Iterator[None]:
    """Context in which a class's methods are torch's; with `native=False` those of the session
    again. What it answers by properties stays.
    """
    methods = [
        each for each in _active.values() if each[0] is owner and isinstance(each[3], FunctionType)
    ]
    with turned(methods, native=native):
        yield


@contextmanager
def turned(replaced: Sequence[Replaced], *, native: bool) -> Iterator[None]:
    """Context in which these are torch's own, or the session's; afterwards they are what they were.

    Contexts nest: the compiler, which meets torch's methods, suspends the session now and then.
    """
    with ExitStack() as stack:
        for owner, name, before, value in reversed(replaced):
            stack.callback(put, owner, name, vars(owner).get(name, _ABSENT))
            put(owner, name, before if native else value)
        yield


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
