"""Each page of the lecture is executed as a notebook, and prints what the page says."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.documents import environment, furnish, other_torch, stale_pictures
from tests.integrations.notebook.kernel import cells_of, client_of, nbformat
from tests.lecture.notebooks import PAGES, notebook


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.skipif(bool(other_torch()), reason=other_torch())
def test_a_page_prints_as_a_notebook_what_it_says(page: Path, tmp_path: Path) -> None:
    """Where one differs, `python -m tests.documents --write docs/lecture/...` updates the page."""
    folder = furnish(tmp_path)
    executed = notebook(page)
    nbformat.validate(executed)
    said = lines(executed)
    client_of(executed, folder, allow_errors=False).execute(env=environment(folder))
    assert lines(executed) == said
    assert stale_pictures(page.read_text(encoding="utf-8"), folder) == ""


def lines(notebook: Any) -> list[tuple[str, list[str]]]:
    """Of each cell what it prints; which of stdout and stderr came first is not kept."""
    return [(cell.source, sorted(cell.printed.splitlines())) for cell in cells_of(notebook)]


def test_there_are_pages() -> None:
    assert len(PAGES) == 19


def test_a_page_that_says_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "99_page.md"
    page.write_text(
        "# Page\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n\n```console\n$ echo 3\n3\n```\n"
    )
    executed = notebook(page)
    says = lines(executed)
    client_of(executed, tmp_path, allow_errors=False).execute(env=dict(os.environ))
    assert [text for _, text in says] == [["2"], ["3"]]
    assert [text for _, text in lines(executed)] == [["1"], ["3"]]
