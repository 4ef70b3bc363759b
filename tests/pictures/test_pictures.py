"""The pictures of README and docs: as their commands draw them now, small, and self-contained.

Their commands are run for real, which takes seconds.
"""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pictures.__main__ import FOLDER, RECORDED, REPOSITORY, furnished, page_of_example
from tests.pictures.recording import COLUMNS, recording
from tests.pictures.screens import HEIGHT, THEMES, VIEWS, WIDTH, picture_name, screens
from tests.report.browser import CHROMIUM, MISSING

Image = pytest.importorskip("PIL.Image")
ImageChops = pytest.importorskip("PIL.ImageChops")
ImageStat = pytest.importorskip("PIL.ImageStat")

RECORDING = FOLDER / "tally_run.svg"
SCREENS = [(view, theme) for view in VIEWS for theme in THEMES]
MOST_BYTES = 150_000
MOST_DIFFERENCE = 12.0
"""Of 255, of a picture's points on average: fonts differ between machines."""


def differs(one: bytes, other: bytes) -> float:
    """The mean difference of two pictures' points."""
    pictures = [Image.open(io.BytesIO(each)).convert("RGB") for each in (one, other)]
    return sum(ImageStat.Stat(ImageChops.difference(*pictures)).mean) / 3


def brightness(picture: bytes) -> float:
    return float(ImageStat.Stat(Image.open(io.BytesIO(picture)).convert("L")).mean[0])


@pytest.mark.thorough("the README's console block prints the same")
def test_the_recording_is_what_the_command_prints_now(tmp_path: Path) -> None:
    """`make pictures` brings it up to date."""
    assert recording(RECORDED, furnished(tmp_path)) == RECORDING.read_text(encoding="utf-8")


def test_the_recording_is_one_file_without_scripts() -> None:
    text = RECORDING.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"svg", "style", "defs", "clipPath", "rect", "g", "circle", "text"}
    addresses = re.findall(r"(?:https?:|url\()[^\s\"')]*", text)
    assert set(addresses) <= {
        "http://www.w3.org/2000/svg",
        *(each for each in addresses if each.startswith("url(#")),
    }
    assert len(text.encode()) < MOST_BYTES


def test_the_recording_says_what_matters() -> None:
    root = ElementTree.fromstring(RECORDING.read_text(encoding="utf-8"))
    texts = ["".join(group.itertext()).replace("\xa0", " ") for group in root.iter()
             if "main" in group.get("class", "").split()]  # fmt: skip
    assert len(texts) == 1
    assert RECORDED.removeprefix("tally") in texts[0]
    assert "fits H100-SXM" in texts[0]
    assert COLUMNS == 80


@pytest.mark.parametrize(("view", "theme"), SCREENS)
def test_a_screenshot_is_small_and_of_its_theme(view: str, theme: str) -> None:
    picture = (FOLDER / picture_name(view, theme)).read_bytes()
    assert Image.open(io.BytesIO(picture)).size == (WIDTH, HEIGHT)
    assert len(picture) < MOST_BYTES
    assert (brightness(picture) > 128) is (theme == "light")


@pytest.mark.thorough("test_browser_page.py opens the same page in the same browser")
@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_screenshots_show_the_page_as_it_is_now(tmp_path: Path) -> None:
    """`make pictures` brings them up to date."""
    for name, picture in screens(page_of_example(furnished(tmp_path))):
        assert differs(picture, (FOLDER / name).read_bytes()) < MOST_DIFFERENCE, name


def test_another_view_would_be_noticed() -> None:
    pictures = [(FOLDER / picture_name(view, "light")).read_bytes() for view in VIEWS]
    assert differs(pictures[0], pictures[1]) > MOST_DIFFERENCE / 2
    assert differs(pictures[0], pictures[0]) == 0


def test_every_picture_is_in_a_document() -> None:
    documents = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    text = "".join(path.read_text(encoding="utf-8") for path in documents)
    assert [path.name for path in FOLDER.iterdir() if path.name not in text] == []
