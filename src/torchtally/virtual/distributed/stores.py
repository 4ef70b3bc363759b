"""Stores that ranks share, of which one rank is there: nobody waits.

Each of the other ranks is assumed to do what this one does: it has set its own key where this one
has set its own, and added what this one has added.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

PORT = 29500


def pattern(key: str) -> str:
    """A key without its numbers: of ranks, most of all."""
    return re.sub(r"\d+", "#", key)


class LocalStore(dist.Store):
    """Stands for every store. C++ calls its methods, too (`PythonStore`, c10d/init.cpp)."""

    ranks = 1
    note: Callable[[str], None]
    instances: list["LocalStore"]
    """C++ keeps its part of a store alone, and calls methods of the Python object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self.host = str(kwargs.get("host_name", next(iter(args), "127.0.0.1")))
        self.port = int(kwargs.get("port", (*args, PORT, PORT)[1]) or PORT)
        self.instances.append(self)

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Value of a key that another rank would have set: what this rank has set in its place."""
        if key in self._values:
            return self._values[key]
        alike = (value for own, value in self._values.items() if pattern(own) == pattern(key))
        self.note(f"the store was asked for {key!r}, which another rank would set")
        return next(alike, b"")

    def add(self, key: str, amount: int) -> int:
        """Sum of counters, whose last rank is this one."""
        count = int(self._values.get(key, b"0")) + amount * self.ranks
        self._values[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        expected = expected.encode() if isinstance(expected, str) else bytes(expected)
        if self._values.get(key, b"") == expected:
            self.set(key, desired)
        return self._values.get(key, expected)

    def check(self, keys: Sequence[str]) -> bool:
        """Keys of other ranks are there as soon as this one has set its own."""
        own = {pattern(key) for key in self._values}
        return all(key in self._values or pattern(key) in own for key in keys)

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        """The keys of other ranks are assumed to be there."""

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def append(self, key: str, value: str | bytes) -> None:
        value = value.encode() if isinstance(value, str) else bytes(value)
        self._values[key] = self._values.get(key, b"") + value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True


def store_of(ranks: int, note: Callable[[str], None]) -> type[LocalStore]:
    """The store of a session."""
    return type(
        "LocalStore", (LocalStore,), {"ranks": ranks, "note": staticmethod(note), "instances": []}
    )
