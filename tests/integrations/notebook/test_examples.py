"""The notebooks of the examples: what they show is what their cells show now, in a real kernel.

Each takes seconds: a kernel that imports torch, and whole models. Their numbers are asserted in
the cells themselves, which fail where they do not hold.
"""

from pathlib import Path

import pytest

from tests.integrations.notebook.kernel import nbformat
from tests.integrations.notebook.write import NOTEBOOKS, portable, rewritten, timeless, written


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_show_now(path: Path) -> None:
    """`python -m tests.integrations.notebook.write` brings them up to date."""
    saved = nbformat.read(path, as_version=4)
    assert "".join(cell.source for cell in saved.cells if cell.cell_type == "code").count("assert")
    assert written(rewritten(path)) == path.read_text(encoding="utf-8")


def test_nothing_of_this_machine_is_kept() -> None:
    assert portable("\x1b[32m/home/me/.venv/lib/python3.12/site-packages/torch/a.py:6") == (
        "\x1b[32msite-packages/torch/a.py:6"
    )
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        assert not any(place in text for place in ("/tmp", "/home/", "/root/", "/lib/python"))


def test_seconds_that_a_cell_took_are_not_kept() -> None:
    line = "tally: step 2, 2012 operators, peak 9.50 GiB"
    assert timeless(f"{line}, 1.74 s") == line
    assert timeless("Step: 23.88 ms") == "Step: 23.88 ms"
