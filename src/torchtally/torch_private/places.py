"""Owner and name of a private part of torch's."""

from typing import Any, NamedTuple


class PrivateName(NamedTuple):
    """A private name that is replaced while a virtual GPU is active."""

    owner: Any
    name: str
