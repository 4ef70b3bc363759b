"""Numbers out of a configuration, with the key in every complaint."""

from collections.abc import Mapping
from typing import Any

from torchtally.errors import UsageError


def count(values: Mapping[str, Any], key: str, default: int = 1) -> int:
    """A whole number of at least 1, or -1: as many as remain. Raises UsageError for others."""
    value = values.get(key)
    if value is None or value == "auto":
        return default
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1 and number != -1:
        raise UsageError(f"{key}: expected a whole number of at least 1, got {value!r}.")
    return number


def section(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part with keys of its own; empty where there is none."""
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def is_true(value: object) -> bool:
    """Whether a value is true as YAML and command lines spell it."""
    return str(value).lower() in ("true", "1", "yes")


def degrees(**sizes: int) -> list[str]:
    """Words of those that split something: "tp 8"."""
    return [f"{name} {size}" for name, size in sizes.items() if size > 1]
