"""The documents hold: their commands are run, their tables and pictures generated again."""

import re
import shlex
from pathlib import Path

import pytest

from tests import documents
from tests.documents import DOCUMENTS, REPOSITORY, differences, furnish, other_torch
from tests.lecture import notebooks as lecture
from torchtally.cli import parser
from torchtally.errors import UsageError
from torchtally.isolation.kernel import abi

PACKAGE = REPOSITORY / "src" / "torchtally"
PAGES = {str(page.relative_to(REPOSITORY)) for page in lecture.PAGES}
"""They are executed as notebooks."""


@pytest.mark.thorough(
    "the commands have tests of their own; other documents show that blocks are run",
    cases=(
        "docs/clusters.md",
        "docs/gates.md",
        "docs/generation.md",
        "docs/how_to.md",
        "docs/inference.md",
        "docs/plan.md",
        "docs/questions.md",
        "docs/report.md",
        "docs/trainings.md",
    ),
)
@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - PAGES))
@pytest.mark.skipif(bool(other_torch()), reason=other_torch())
def test_a_document_holds(name: str, tmp_path: Path) -> None:
    if name == "docs/files.md" and not abi():
        pytest.skip("it shows what the kernel keeps, which this one does not")
    diff = differences(name, (REPOSITORY / name).read_text(encoding="utf-8"), furnish(tmp_path))
    assert not diff, f"{diff}\n`make docs` brings the documents up to date."


HOLDS = """\
```console
$ echo one; echo two >&2
one
two
$ true
$ echo three
three
```

```python
print(1 + 1)
```

```text
2
```

```sh no-run: it fails
exit 1
```
"""


def test_a_document_that_holds(tmp_path: Path) -> None:
    assert differences("it", HOLDS, tmp_path) == ""


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("two\n$ true", "2\n$ true"),
        ("two\n$ true", "$ true"),
        ("$ true\n", "$ true\nnothing\n"),
        ("three\n```", "three\n\n```"),
        ("three\n```", "three \n```"),
        ("```text\n2", "```text\n3"),
        ("print(1 + 1)", "raise SystemExit('no')"),
        ("print(1 + 1)", "print(1 + 1); raise SystemExit(1)"),
        ("$ true", "$ false"),
        ("```text\n2\n```", ""),
    ],
)
def test_a_document_that_does_not_hold_is_found(true: str, false: str, tmp_path: Path) -> None:
    assert true in HOLDS
    assert differences("it", HOLDS.replace(true, false, 1), tmp_path) != ""


@pytest.mark.one_case_in(9)
@pytest.mark.parametrize("name", documents.GENERATED)
def test_a_generated_part_that_is_stale_is_found(name: str, tmp_path: Path) -> None:
    fresh = f"<!-- generated: {name} -->\n{documents.generated(name)}\n<!-- end -->\n"
    assert differences("it", fresh, tmp_path) == ""
    lines = fresh.splitlines(keepends=True)
    middle = len(lines) // 2
    assert differences("it", "".join(lines[:middle] + lines[middle + 1 :]), tmp_path) != ""


def test_bringing_up_to_date_leaves_a_document_that_holds(tmp_path: Path) -> None:
    stale = HOLDS.replace("\ntwo\n", "\n2\n").replace("```text\n2", "```text\n3")
    assert documents.brought_up_to_date(stale, tmp_path) == HOLDS


def test_only_the_wall_clock_of_progress_may_differ() -> None:
    said = "tally: step 1/2, 1736 operators, peak 10.96 GiB, 1.94 s\n"
    assert documents.is_same(said, said.replace("1.94 s", "12.1 ms"))
    assert not documents.is_same(said, said.replace("1736", "1737"))
    assert not documents.is_same(said, said.replace("10.96", "10.97"))
    assert not documents.is_same("took, 1.94 s\n", "took, 1.95 s\n")


def test_a_script_that_fails_is_found(tmp_path: Path) -> None:
    document = "```sh\ntrue\nfalse\ntrue\n```\n"
    assert "exit status 1" in differences("it", document, tmp_path)
    assert differences("it", document.replace("false", "true"), tmp_path) == ""


def test_a_block_is_left_out_where_it_says_why(tmp_path: Path) -> None:
    assert differences("it", "```sh no-run: takes a week\nfalse\n```\n", tmp_path) == ""
    with pytest.raises(AssertionError):
        list(documents.shown("```sh no-run\nfalse\n```\n"))


def test_a_picture_that_is_stale_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "REPOSITORY", tmp_path)
    monkeypatch.setitem(documents.PICTURES, "docs/x.svg", lambda _: "<svg>new</svg>\n")
    (tmp_path / "docs").mkdir()
    picture = tmp_path / "docs" / "x.svg"
    for text, is_stale in (("<svg>old</svg>\n", True), ("<svg>new</svg>\n", False)):
        picture.write_text(text)
        assert bool(differences("it", "![a plot](docs/x.svg)\n", tmp_path)) is is_stale


def commands_not_run(document: str) -> list[list[str]]:
    """Every `tally` command of the shell blocks that say why they are not run."""
    return [
        words[1:]
        for block in documents.BLOCK.finditer(document)
        if block["language"] == "sh" and block["reason"]
        for line in block["text"].replace("\\\n", " ").splitlines()
        for words in [shlex.split(line, comments=True)]
        if words[:1] == ["tally"]
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_that_are_not_run_are_understood(name: str) -> None:
    for arguments in commands_not_run((REPOSITORY / name).read_text(encoding="utf-8")):
        assert parser(arguments).parse_args(arguments)  # SystemExit for an unknown option


def test_a_command_that_is_not_understood_is_found() -> None:
    document = "```sh no-run: yours\ntally show run.tally --bye line  # a view\n```\n"
    (arguments,) = commands_not_run(document)
    assert arguments == ["show", "run.tally", "--bye", "line"]
    with pytest.raises((SystemExit, UsageError)):
        parser(arguments).parse_args(arguments)


LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#:]+)(#[^)]*)?\)")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_within_the_repository_lead_somewhere(name: str) -> None:
    folder = (REPOSITORY / name).parent
    targets = LINK.finditer((REPOSITORY / name).read_text(encoding="utf-8"))
    assert [
        target["target"] for target in targets if not (folder / target["target"]).exists()
    ] == []


PATH = re.compile(r"`((?:\w+/)*\w+(?:/|\.(?:py|toml|json|js)))`")
"""A file or folder that a room's page names: `work/geometry.py`, `pace.py`, `plan/activations/`."""


def paths_not_there(page: Path, package: Path, text: str) -> list[str]:
    """What a room's page names and nothing has: below the package, the repository, the room."""
    roots = (package, package.parents[1], page.parent)
    files = {file.name for file in page.parent.rglob("*")} | {
        file.name for file in package.rglob("*")
    }
    return [
        name
        for name in PATH.findall(text)
        if not any((root / name).exists() for root in roots)
        and ("/" in name.rstrip("/") or name.rstrip("/") not in files)
    ]


@pytest.mark.parametrize(
    "page", sorted(PACKAGE.rglob("README.md")), ids=lambda page: page.parent.name
)
def test_a_page_of_a_room_names_files_that_exist(page: Path) -> None:
    assert paths_not_there(page, PACKAGE, page.read_text(encoding="utf-8")) == []


def test_a_name_of_no_file_is_found() -> None:
    page, text = (
        PACKAGE / "work/README.md",
        "see `work/geometry.py`, `work/geometries.py`, `gone.py`",
    )
    assert paths_not_there(page, PACKAGE, text) == ["work/geometries.py", "gone.py"]


def test_the_package_and_the_changelog_agree_on_the_version() -> None:
    from importlib.metadata import version

    assert f"## {version('torchtally')}" in (REPOSITORY / "CHANGELOG.md").read_text()
