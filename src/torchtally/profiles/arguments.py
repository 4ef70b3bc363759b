"""Arguments of operators as profilers write them: JSON within JSON."""

from typing import Any

import msgspec

from torchtally.profiles.profile import NO_ARGUMENTS, Arguments


def decode(key: tuple[bytes, bytes, bytes, bytes]) -> Arguments:
    if not key[0]:
        return NO_ARGUMENTS
    dims, strides, types, values = (json_of(part) for part in key)
    shapes = nested_ints(dims)
    if shapes is None:
        return NO_ARGUMENTS
    count = len(shapes)
    kinds = tuple(map(str, types)) if isinstance(types, list) else ()
    texts = tuple(map(str, values)) if isinstance(values, list) else None
    return Arguments(
        shapes,
        fitting(nested_ints(strides), count),
        kinds if len(kinds) == count else ("",) * count,
        fitting(texts, count),
    )


def fitting(values: tuple[Any, ...] | None, count: int) -> tuple[Any, ...] | None:
    return values if values is not None and len(values) == count else None


def json_of(text: bytes) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def nested_ints(value: object) -> tuple[Any, ...] | None:
    """Lists as tuples; None for anything but lists of ints, of lists of ints, of strings."""
    if not isinstance(value, list):
        return None
    parts: list[Any] = []
    for part in value:
        if isinstance(part, list):
            inner = nested_ints(part)
            if inner is None:
                return None
            parts.append(inner)
        elif isinstance(part, int) and not isinstance(part, bool) and 0 <= part < 1 << 62:
            parts.append(part)
        else:
            return None
    return tuple(parts)
