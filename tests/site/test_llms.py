"""llms.txt names the site's pages; the skill is one that agents accept."""

import re
from pathlib import Path

from tests.documents import REPOSITORY
from tests.site.contents import pages
from tests.site.llms import SKILL, llms_text, missing_pages

CONTENTS = (
    "# All\n\n## Start\n\n- [README](../README.md): what\n- [A](a.md#b), [B](https://b.org/c.md)\n"
)


def test_links_are_addresses_of_the_site() -> None:
    text = llms_text(CONTENTS)
    assert "- [README](index.html): what\n- [A](docs/a.html#b), [B](https://b.org/c.md)" in text
    assert text.startswith("# torchtally\n\n> ")


def test_every_listed_document_is_in_it() -> None:
    text = llms_text((REPOSITORY / "docs/README.md").read_text(encoding="utf-8"))
    listed = [path for _, paths in pages() for path in paths if path.startswith("docs/")]
    shown = re.findall(r"\]\((docs/[^)#]+)\.html", text)
    assert "docs/agents" in shown
    lectures = {path for path in listed if path.startswith(("docs/lecture/", "docs/reference/"))}
    missing = {path for path in listed if path.removesuffix(".md") not in shown} - lectures
    assert "docs/lecture/index" in shown
    assert missing == {"docs/README.md"}


def test_the_skill_has_a_name_and_a_description() -> None:
    text = (REPOSITORY / SKILL).read_text(encoding="utf-8")
    head = re.match(r"---\nname: ([a-z0-9-]{1,64})\ndescription: (.{1,1024})\n---\n", text)
    assert head is not None
    assert head[1] == "torchtally"


def test_a_page_that_is_not_there_is_found(tmp_path: Path) -> None:
    text = llms_text(CONTENTS)
    assert missing_pages(text, tmp_path) == [
        "llms.txt links to index.html",
        "llms.txt links to docs/a.html",
    ]
    (tmp_path / "index.html").touch()
    assert missing_pages(text, tmp_path) == ["llms.txt links to docs/a.html"]
