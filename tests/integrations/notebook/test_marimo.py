"""marimo runs the example and shows its results, as `marimo export html` does."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.notebook.write import FOLDER

pytest.importorskip("marimo")


@pytest.mark.thorough("test_shown.py shows the same objects without marimo")
def test_the_example_shows_its_results(tmp_path: Path) -> None:
    """Its closed form is asserted in it: a cell that fails makes the export fail."""
    page = tmp_path / "page.html"
    example = shutil.copy(FOLDER / "first_look_marimo.py", tmp_path)  # it writes beside it
    done = subprocess.run(
        [sys.executable, "-m", "marimo", "export", "html", example, "-o", str(page)],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    for shown in ("fits H100-SXM", "By operator", "Llama 3 8B"):
        assert shown in text
    assert text.count("tally.tally table") >= 3  # the style of each result
