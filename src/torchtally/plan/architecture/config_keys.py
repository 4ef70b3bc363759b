"""The keys of one config.json, each checked when it is read: errors say file, key and what to do.

Keys that a file leaves out are taken from transformers' own class, as transformers does
(`config_defaults.toml`), but for the sizes of a model. transformers writes those in full; only of a
model within a model it writes nothing but the differences to the class.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError

DEFAULTS = Path(__file__).with_name("config_defaults.toml")
BY_HAND = "Or give the shape by hand: --layers, --width, --heads, --kv-heads, --ffn, --vocabulary."
MOST_BYTES = 16_000_000
"""Of a config.json. Real ones are a few kilobytes."""
LARGEST = 10**9
"""Of any size: larger numbers are mistakes or attacks."""


@dataclass(frozen=True, slots=True)
class Config:
    """One table of a config.json. Of several spellings of a key the first that is there counts."""

    place: str
    """The file and the tables around this one, for messages."""
    values: Mapping[str, Any]
    model_type: str = ""
    is_nested: bool = False
    """It stands within another, as a `text_config` does."""

    def wrong(self, key: str, complaint: str) -> UsageError:
        return UsageError(f"{self.place}: {key}: {complaint}. {BY_HAND}")

    def of_type(self, model_type: str) -> "Config":
        """The same keys, with the defaults of this class."""
        return replace(self, model_type=model_type)

    def size(self, *keys: str) -> int:
        """A whole number above zero that must be there."""
        key, value = self._first(keys)
        if value is None and self.is_nested:
            value = self._default(keys)
        if value is None:
            raise self.wrong(" or ".join(keys), "is missing; expected a whole number")
        return self._whole(key, value, 1)

    def setting(self, *keys: str) -> int:
        """A whole number above zero; the class's own where the file has none."""
        number = self.size_or_none(*keys)
        if number is None:
            raise self.wrong(" or ".join(keys), "is missing; expected a whole number")
        return number

    def size_or_none(self, *keys: str) -> int | None:
        """A whole number above zero; None for null or zero, or where file and class have none."""
        return self.count(*keys) or None

    def count(self, *keys: str) -> int:
        """A whole number not below zero; zero for null, or where neither file nor class has one."""
        key, value = self._first(keys)
        if value is None and not self.says_null(*keys):
            value = self._default(keys)
        return 0 if value is None else self._whole(key, value, 0)

    def is_set(self, key: str) -> bool:
        """It has a value other than null, in the file or in the class."""
        value = self.values.get(key)
        return (self._default((key,)) if not self.says_null(key) else value) is not None

    def flag(self, *keys: str) -> bool:
        key, value = self._first_or_default(keys)
        if not isinstance(value, bool):
            raise self.wrong(key, f"expected true or false, found {excerpt(value)}")
        return value

    def text(self, *keys: str) -> str:
        key, value = self._first_or_default(keys)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"expected a string, found {excerpt(value)}")
        return value

    def fraction(self, *keys: str) -> float:
        """A number from zero to one; zero where neither file nor class has one."""
        key, value = self._first_or_default(keys)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.wrong(key, f"expected a number from 0 to 1, found {excerpt(value)}")
        return float(value)

    def list_or_none(self, key: str) -> list[Any] | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, f"expected a list, found {excerpt(value)}")
        return value

    def layers_listed(self, key: str, layers: int) -> frozenset[int] | None:
        """Numbers of layers; None where the list is not there."""
        listed = self.list_or_none(key)
        if listed is None:
            return None
        for at in listed:
            if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < layers:
                raise self.wrong(
                    key, f"expected layers from 0 to {layers - 1}, found {excerpt(at)}"
                )
        return frozenset(listed)

    def below(self, key: str) -> "Config | None":
        """The table under this key."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, f"expected a table, found {excerpt(value)}")
        return Config(f"{self.place}: {key}", value, is_nested=True)

    def says_null(self, *keys: str) -> bool:
        """The key is there, as null: not the same as a missing key."""
        return any(key in self.values for key in keys)

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        """The first spelling that has a value, and the value."""
        for key in keys:
            if self.values.get(key) is not None:
                return key, self.values[key]
        return keys[0], None

    def _first_or_default(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        key, value = self._first(keys)
        return key, self._default(keys) if value is None else value

    def _default(self, keys: tuple[str, ...]) -> Any:
        row = defaults().get(self.model_type, {})
        return next((row[key] for key in keys if key in row), None)

    def _whole(self, key: str, value: Any, least: int) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= LARGEST:
            expected = f"a whole number from {least} to {LARGEST:_}"
            raise self.wrong(key, f"expected {expected}, found {excerpt(value)}")
        return int(value)


@lru_cache(maxsize=1)
def defaults() -> Mapping[str, Mapping[str, Any]]:
    """Defaults by model_type: what transformers' class has for keys that a file leaves out."""
    return tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))


def load(path: Path) -> Config:
    """A config.json as its keys.

    Raises UsageError for a file that cannot be read, is too large, or is not a JSON object.
    """
    try:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file. {BY_HAND}")
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: too large for a config.json: {path.stat().st_size} bytes.")
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as a config.json: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: not a config.json: it holds {excerpt(values)}, not an object.")
    return Config(str(path), values)


def excerpt(value: Any) -> str:
    """An untrusted value for a message: short, and without terminal escapes."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
