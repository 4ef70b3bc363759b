"""Configs whose types say which values a field takes, in words that errors and help pages use.

`check_fields` is the `__post_init__` of such a dataclass; `checked` reads single values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from sys import float_info
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from torchtally.errors import UsageError

Size = Annotated[int, Meta(ge=1, description="a whole number above 0")]
Count = Annotated[int, Meta(ge=0, description="a whole number, 0 or more")]
Positive = Annotated[float, Meta(gt=0, le=float_info.max, description="a finite number above 0")]
Magnitude = Annotated[
    float, Meta(ge=0, le=float_info.max, description="a finite number, 0 or more")
]
Limit = Annotated[float, Meta(ge=0, description="a number, 0 or more")]
Share = Annotated[float, Meta(ge=0, le=1, description="a number in [0, 1]")]
Decay = Annotated[float, Meta(ge=0, lt=1, description="a number in [0, 1)")]

NUMBERS = "an array such as [0.9, 0.95]"
T = TypeVar("T")
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@cache
def hints(kind: type) -> Mapping[str, Any]:
    """The type of each field, by its dotted key; those of inner dataclasses are among them."""
    return dict(_hints(kind, ""))


def _hints(kind: type, before: str) -> Iterator[tuple[str, Any]]:
    types = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if (table := table_of(types[field.name])) is not None:
            yield from _hints(table, f"{before}{field.name}.")
        else:
            yield before + field.name, types[field.name]


def table_of(hint: Any) -> type | None:
    """The dataclass that a field has, if it has one."""
    tables = (one for one in members(hint) if isinstance(one, type) and is_dataclass(one))
    return next(tables, None)


def check_fields(config: Any) -> None:
    """Raise UsageError for the first field whose value its type does not take."""
    check_values(
        type(config), {field.name: getattr(config, field.name) for field in fields(config)}
    )


def check_values(kind: type, values: Mapping[str, Any], place: str = "") -> None:
    """The same for values of such fields; other names are ignored."""
    for key, hint in hints(kind).items():
        if key in values:
            convert(key, hint, values[key], place=place)


def convert(key: str, hint: Any, value: Any, *, place: str = "", strict: bool = True) -> Any:
    """The value in its type. Raises UsageError naming key and value."""
    try:
        return msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        raise UsageError(place + complaint(key, hint, value)) from error


def complaint(key: str, hint: Any, value: Any) -> str:
    """What is wrong with a value."""
    names = [name for member in members(hint) for name in _names(member)]
    near = get_close_matches(str(value), names, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    return f"{key}: expected {type_in_words(hint)}, got {value!r}.{guess}"


def read_as(kind: type[T], values: Mapping[str, Any], place: str) -> T:
    """The dataclass of these values. Raises UsageError naming place and key."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        is_ours = isinstance(error.__cause__, UsageError)
        text = error.__cause__ if is_ours else _in_our_words(error, kind, values)
        raise UsageError(f"{place}: {text}") from error
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _in_our_words(error: msgspec.ValidationError, kind: type, values: Mapping[str, Any]) -> str:
    """The error in our words, where it is one field's."""
    match = re.search(r"at `\$\.([\w.]+)", str(error))
    key = match[1] if match else ""
    if key not in hints(kind):
        return f"{error}."
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return complaint(key, hints(kind)[key], value)


def members(hint: Any) -> tuple[Any, ...]:
    """The types that a field's values may have."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def plain_members(hint: Any) -> tuple[Any, ...]:
    """The same without ranges."""
    return tuple(
        get_args(member)[0] if get_origin(member) is Annotated else member
        for member in members(hint)
    )


def type_in_words(hint: Any) -> str:
    """Such as "a whole number, or none"."""
    texts = ["none" if member is type(None) else _words(member) for member in members(hint)]
    return ", or ".join(texts)


def _names(kind: Any) -> list[str]:
    return [str(name) for name in get_args(kind)] if get_origin(kind) is Literal else []


def _words(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return str(kind.__metadata__[0].description)
    if names := _names(kind):
        return ", ".join(names)
    if get_origin(kind) is tuple:
        return NUMBERS if get_args(kind)[0] is float else 'an array such as ["one", "two"]'
    if get_origin(kind) is dict:
        return "a table such as {width = 64}"
    return WORDS.get(kind, str(kind))
