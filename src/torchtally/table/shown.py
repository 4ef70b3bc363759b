"""What `print` and a notebook show of a table, a ledger, a trace, an answer and their like.

The rooms that hold them may not import the renderers. So the top of the package fills `renderers`
with functions that import `report` when something is first shown.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from html import escape
from typing import Any

from torchtally.files.atomic import write_atomically

renderers: dict[str, Callable[[Any], str]] = {}
"""By form: "text", "html", "markdown" and "page"."""

MIME_TYPES = {"text/plain": "text", "text/html": "html", "text/markdown": "markdown"}
"""What a notebook asks for, and the form it gets."""
PAGE_HEIGHT = 720
"""Of the interactive page in a notebook, in pixels."""


class Shown:
    """An object whose `str` is its table, and which a notebook shows as static HTML.

    `_repr_html_` and `_repr_mimebundle_` are what Jupyter, VS Code, Colab and marimo ask for:
    https://ipython.readthedocs.io/en/stable/config/integrating.html
    """

    __slots__ = ()

    def __str__(self) -> str:
        return renderers["text"](self)

    def _repr_html_(self) -> str:
        return renderers["html"](self)

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """Bundle by MIME type. A console shows the plain text, a browser the HTML."""
        return {
            mime: renderers[form](self)
            for mime, form in MIME_TYPES.items()
            if (not include or mime in include) and mime not in (exclude or ())
        }


class Browsable(Shown):
    """One that has an interactive page, too: that of `tally report`."""

    __slots__ = ()

    def show(self, *, height: int = PAGE_HEIGHT) -> "Page":
        """The interactive page: in a notebook a frame of so many pixels, which is saved with it.

        Raises UsageError for what has no page.
        """
        return Page(renderers["page"](self), height)


@dataclass(frozen=True, slots=True, repr=False)
class Page:
    """An interactive page for a browser."""

    html: str
    """A whole document, which loads nothing from anywhere."""
    height: int = PAGE_HEIGHT

    def __repr__(self) -> str:
        return f"<Page of {len(self.html)} characters: save(path), or show it in a notebook>"

    def _repr_html_(self) -> str:
        """A frame whose scripts reach neither the notebook nor a network."""
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.html, quote=True)}" '
            f'style="width:100%;height:{int(self.height)}px;border:0" '
            'title="torchtally: interactive page"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all. Raises OSError."""
        write_atomically(os.fspath(path), self.html.encode("utf-8", "replace"))
