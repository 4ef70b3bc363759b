"""Fields of a training config by dotted names: `optimizer.lr`, `model.layers`, `seed`."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from torchtally.errors import UsageError
from torchtally.reading import parse_toml
from torchtally.train.config import TrainConfig

OURS = ("log.folder",)
"""Fields set by the sweep."""


@cache
def hints() -> Mapping[str, Any]:
    """The type of each field that can be varied, by key."""
    return {key: hint for key, hint in _hints(TrainConfig, "") if key not in OURS}


def _hints(kind: type, before: str) -> Iterator[tuple[str, Any]]:
    types = get_type_hints(kind)
    for field in fields(kind):
        hint = types[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _hints(hint, f"{before}{field.name}.")
        else:
            yield before + field.name, hint


def hint_of(key: str) -> Any:
    """The type of a field. Raises UsageError with suggestions."""
    if key in hints():
        return hints()[key]
    if key in OURS:
        raise UsageError(f"{key}: set by the sweep: each run has its own folder below --out.")
    if inner := [hint for hint in hints() if hint.startswith(f"{key}.")]:
        raise UsageError(f"{key}: is a section. It has: {', '.join(inner)}.")
    # The last part alone, `lr`, is as likely as a typo.
    by_last = [hint for hint in hints() if hint.rpartition(".")[2] == key]
    near = by_last or get_close_matches(key, hints(), n=3)
    guess = (
        f" Did you mean {' or '.join(near)}?" if near else " `tally train CONFIG --help` lists all."
    )
    raise UsageError(f"{key}: unknown key.{guess}")


def members(hint: Any) -> tuple[Any, ...]:
    """The types that a field's values may have."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_optional(hint: Any) -> bool:
    return type(None) in members(hint)


def is_number(hint: Any) -> bool:
    return is_whole(hint) or float in members(hint)


def is_whole(hint: Any) -> bool:
    """Whether the field is a whole number."""
    return int in members(hint) and float not in members(hint)


def is_array(key: str) -> bool:
    """Whether the field has several values."""
    return any(get_origin(member) is tuple for member in members(hint_of(key)))


def read_value(key: str, text: str) -> Any:
    """A field's value as written on a command line. Raises UsageError naming key and value.

    Numbers, true, false, words; none for optional fields; TOML's arrays and quoted strings.
    """
    hint = hint_of(key)
    if text.lower() == "none" and is_optional(hint):
        return None
    value: Any = text
    if text[:1] in ("[", '"', "'"):
        value = parse_toml(f"value = {text}", f"{key}: {text[:200]}", "a TOML value")["value"]
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        names = [name for member in members(hint) for name in _names(member)]
        near = get_close_matches(text, names, n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"{key}: expected {_wanted(hint)}, got {text!r}.{guess}") from error


def typed_value(key: str, value: Any) -> Any:
    """A value read from JSON, converted to its field's type. Raises UsageError."""
    try:
        return msgspec.convert(value, hint_of(key), strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{key}: {value!r}: {error}.") from error


def _wanted(hint: Any) -> str:
    """Such as "a whole number, or none"."""
    texts = [_words(member) for member in members(hint) if member is not type(None)]
    return ", or ".join([*texts, *(["none"] if is_optional(hint) else [])])


def _names(kind: Any) -> list[str]:
    return [str(name) for name in get_args(kind)] if get_origin(kind) is Literal else []


def _words(kind: Any) -> str:
    if names := _names(kind):
        return ", ".join(names)
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        example = '["one", "two"]' if of is str else "[0.9, 0.95]" if of is float else str(of)
        return f"an array such as {example}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(kind, str(kind))


def flags(key: str, value: Any) -> tuple[str, ...]:
    """A value as command-line flags of `tally train`."""
    if hint_of(key) is bool:
        section, dot, name = key.rpartition(".")
        return (f"--{section}{dot}{'' if value else 'no-'}{name}",)
    if isinstance(value, tuple):
        return (f"--{key}", *map(str, value))
    return (f"--{key}={value}",)


def value_text(value: Any) -> str:
    """A value as text that `read_value` accepts: 0.01, 1e-05, true, none, [0.9, 0.95]."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        inner = (f'"{item}"' if isinstance(item, str) else value_text(item) for item in value)
        return f"[{', '.join(inner)}]"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
