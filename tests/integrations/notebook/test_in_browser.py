"""What a notebook shows, in a real Chromium: the colours of its theme, and a page in its frame."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.notebook.test_shown import THINGS
from tests.report.browser import CHROMIUM, MISSING, Browser, browser

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)

INK = "rgb(221, 222, 223)"
CELL = "document.querySelector('.tally td')"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


def test_text_has_the_colour_of_the_notebooks_theme(chromium: Browser, tmp_path: Path) -> None:
    """And what stands beside it has no style of ours."""
    file = tmp_path / "notebook.html"
    html = THINGS["ledger"]._repr_html_()
    beside = "<table id='beside'><tr><td>1</td></tr></table>"
    body = f"<body style='background: #111; color: {INK}'>{beside}{html}"
    file.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{body}")
    page = chromium.open(file, width=900, height=900)
    assert page.evaluate(f"getComputedStyle({CELL}).color") == INK
    other = "getComputedStyle(document.querySelector('#beside td'))"
    assert page.evaluate(f"{other}.fontVariantNumeric") == "normal"
    assert page.evaluate(f"getComputedStyle({CELL}).fontVariantNumeric") == "tabular-nums"
    assert page.complaints == []
    assert page.requests == []


def test_a_narrow_notebook_scrolls_its_tables_alone(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<meta charset='utf-8'>{THINGS['table']._repr_html_()}")
    page = chromium.open(file, width=320, height=600)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_page_is_drawn_in_its_frame(chromium: Browser, tmp_path: Path) -> None:
    """Its scripts run in a frame that may do nothing else."""
    file = tmp_path / "frame.html"
    file.write_text(f"<meta charset='utf-8'>{THINGS['ledger'].show(height=500)._repr_html_()}")
    page = chromium.open(file, width=1000, height=520)
    colours = 0
    for _ in range(50):  # the frame's content is out of reach for scripts of the page around it
        page.settle()
        page.screenshot(tmp_path / "frame.png")
        picture = Image.open(io.BytesIO((tmp_path / "frame.png").read_bytes())).convert("RGB")
        colours = len(picture.getcolors(1 << 24))
        if colours > 200:
            break
    assert colours > 200, "nothing but text was drawn"
    assert page.complaints == []
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None
