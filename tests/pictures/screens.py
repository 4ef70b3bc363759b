"""Screenshots of the interactive page, in a real Chromium, in light and dark."""

import base64
from collections.abc import Iterator
from pathlib import Path

from tests.report.browser import Browser, browser

VIEWS = ("overview", "source", "memory")
THEMES = ("light", "dark")
WIDTH, HEIGHT = 1280, 800
QUALITY = 85
"""Of WebP, in percent."""


def picture_name(view: str, theme: str) -> str:
    return f"page_{view}_{theme}.webp"


def screens(page: Path) -> Iterator[tuple[str, bytes]]:
    """Each view in each theme: its file's name, and the picture."""
    with browser() as chromium:
        for view in VIEWS:
            for theme in THEMES:
                yield picture_name(view, theme), screenshot(chromium, page, view, theme)


def screenshot(chromium: Browser, path: Path, view: str, theme: str) -> bytes:
    """What a reader sees once the page is drawn."""
    page = chromium.open(path, width=WIDTH, height=HEIGHT, view=f"#{view}")
    page.set_theme(theme)
    page.wait_for("document.documentElement.dataset.readyMs")
    page.settle()
    answer = page.send("Page.captureScreenshot", format="webp", quality=QUALITY)
    assert page.complaints == []
    return base64.b64decode(answer["data"])
