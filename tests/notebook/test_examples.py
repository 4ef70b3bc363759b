"""The notebooks of the examples: what they show is what their cells show now, in a real kernel.

Each takes seconds: a kernel that imports torch, and whole models. Their numbers are asserted in
the cells themselves, which fail where they do not hold.
"""

from pathlib import Path

import pytest

from tests.notebook.kernel import nbformat
from tests.notebook.write import NOTEBOOKS, rewritten, timeless, written


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_show_now(path: Path) -> None:
    """`python -m tests.notebook.write` brings them up to date."""
    saved = nbformat.read(path, as_version=4)
    assert "".join(cell.source for cell in saved.cells if cell.cell_type == "code").count("assert")
    assert written(rewritten(path)) == path.read_text(encoding="utf-8")


def test_seconds_that_a_cell_took_are_not_kept() -> None:
    line = "tally: step 2, 2012 operators, peak 9.50 GiB"
    assert timeless(f"{line}, 1.74 s") == line
    assert timeless("Step: 23.88 ms") == "Step: 23.88 ms"
