"""How pages look: a style sheet for each kind of page."""

from functools import cache
from pathlib import Path


@cache
def style(page: str) -> str:
    """Style sheet of a kind of page: the text of `styles/PAGE.css`."""
    return Path(__file__).with_name("styles").joinpath(f"{page}.css").read_text("utf-8")
