"""The Markdown that the site is built from: the documents, and pages for files that they name."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat

from tests.documents import REPOSITORY
from tests.lecture.notebooks import PAGES, notebook
from tests.site.contents import pages
from tests.site.reference import fenced, reference

LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?=[)#])")
IMAGE = re.compile(r"(?<=src=\"|set=\")(?P<target>[^\":]+)(?=\")")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh", ".ipynb": "json"}
PICTURES = (".svg", ".webp", ".png")


def write_sources(root: Path) -> None:
    """All pages below the root, at their places in the repository, with the pictures they show."""
    for path, text in reference():
        write(root / "docs/reference" / path, text)
    for _, paths in pages():
        for path in paths:
            document = REPOSITORY / path
            text = with_sources(document.read_text(encoding="utf-8"), document.parent, root)
            if document in PAGES:
                file = (root / path).with_suffix(".ipynb")
                write(file, nbformat.writes(notebook(document)))
                text += f'\n<a href="{file.name}" download>This page as a notebook</a>\n'
            write(root / path, text)


def with_sources(text: str, folder: Path, root: Path) -> str:
    """A page; what it shows is copied, and a file or folder that it names becomes a page."""

    def linked(match: re.Match[str]) -> str:
        target = (folder / match["target"]).resolve()
        place = root / target.relative_to(REPOSITORY)
        if target.suffix in PICTURES:
            copy(target, place)
        elif target.suffix != ".md":
            page = place.with_name(f"{place.name}.md")
            if not page.exists():
                write(page, "")  # of notebooks that name each other
                text = source_page(target)
                is_notebook = target.suffix == ".ipynb"  # in code, "](" is no link
                write(page, with_sources(text, target.parent, root) if is_notebook else text)
            return f"{match['target'].rstrip('/')}.md"
        return match["target"]

    return LINK.sub(linked, IMAGE.sub(linked, for_python_markdown(text)))


def for_python_markdown(text: str) -> str:
    """Without what Python-Markdown does not read: fences that say why, comments before tables."""
    text = re.sub(r"^(```\w+) no-run: .*", r"\1", text, flags=re.M)
    return re.sub(r"^<!-- .* -->$", "", text, flags=re.M)


def source_page(path: Path) -> str:
    """The text of a file; a notebook's cells; the names in a folder."""
    title = path.relative_to(REPOSITORY)
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.name[0] not in "._")
        return f"# {title}\n\n" + "\n".join(f"- `{name}`" for name in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return f"# {title}\n\n" + "\n\n".join(cells(json.loads(text)))
    return f"# {title}\n\n{fenced(LANGUAGES.get(path.suffix, 'text'), text)}"


def cells(notebook: dict[str, list[dict[str, object]]]) -> Iterator[str]:
    """A notebook's Markdown and code; it is opened in Jupyter to see what the code shows."""
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        # Its headings go below the page's own.
        is_code = cell["cell_type"] == "code"
        yield fenced("python", text) if is_code else re.sub(r"^#", "##", text, flags=re.M)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def copy(source: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
