"""What `print` and a notebook show of a table or a ledger.

The rooms that hold them may not import the renderers. So the top of the package fills `renderers`
with functions that import `report` when something is first shown.
"""

from collections.abc import Callable
from typing import Any

renderers: dict[str, Callable[[Any], str]] = {}
"""By form: "text" and "html"."""


class Shown:
    """An object whose `str` is its table, and which a notebook shows as static HTML."""

    __slots__ = ()

    def __str__(self) -> str:
        return renderers["text"](self)

    def _repr_html_(self) -> str:
        return renderers["html"](self)
