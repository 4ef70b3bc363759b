"""The site's checks find what a reader would miss. Building the site is `make site`."""

from pathlib import Path

import pytest

from tests.documents import REPOSITORY
from tests.site.check import mistakes
from tests.site.contents import pages
from tests.site.sources import LINK, for_python_markdown

PAGE = '<h2 id="here"></h2><a href="#here"></a><a href="b.html#there"></a><img src="a.svg">'


@pytest.mark.parametrize(
    ("held", "broken", "mistake"),
    [
        ("b.html#there", "b.html#nowhere", "index.html links to b.html#nowhere"),
        ("b.html#there", "c.html", "index.html links to c.html"),
        ('"#here"', '"#gone"', "index.html links to #gone"),
        ("a.svg", "https://a.org/a.svg", "index.html loads https://a.org/a.svg"),
        ("a.svg", "gone.svg", "index.html links to gone.svg"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(
    held: str, broken: str, mistake: str, tmp_path: Path
) -> None:
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="https://elsewhere.org"></a>')
    (tmp_path / "a.svg").touch()
    (tmp_path / "index.html").write_text(PAGE)
    assert list(mistakes(tmp_path)) == []
    (tmp_path / "index.html").write_text(PAGE.replace(held, broken))
    assert [line.startswith(mistake) for line in mistakes(tmp_path)] == [True]


def test_every_page_that_a_page_names_is_in_the_contents() -> None:
    listed = {path for _, paths in pages() for path in paths}
    named = {
        (REPOSITORY / path).parent.joinpath(target).resolve().relative_to(REPOSITORY)
        for path in listed
        for target in LINK.findall((REPOSITORY / path).read_text(encoding="utf-8"))
        if target.endswith(".md")
    }
    assert len(named) > 30
    written = {str(path) for path in named if not path.is_relative_to("docs/reference")}
    assert written - listed == set()


def test_every_document_is_in_the_contents_once() -> None:
    listed = [path for _, paths in pages() for path in paths]
    documents = {str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("docs/**/*.md")}
    assert len(listed) == len(set(listed))
    assert documents - set(listed) == set(), "a new document has a place in docs/README.md"


def test_fences_that_say_why_are_fences() -> None:
    assert for_python_markdown("```sh no-run: two machines\nls\n```\n") == "```sh\nls\n```\n"
