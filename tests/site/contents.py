"""What the site holds, in the order in which it is read: as docs/README.md lists it."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.documents import REPOSITORY

FURTHER: dict[str, tuple[str, ...]] = {
    "Start": ("docs/README.md", "docs/lecture/*.md"),
    "Reference": (
        "docs/reference/python.md", "docs/reference/commands/*.md", "docs/reference/documents/*.md",
    ),
    "The project": (
        "src/torchtally/**/README.md", "editors/*/README.md", "docs/reference/rooms.md",
    ),
}  # fmt: skip
"""Patterns of a section's pages that the list does not name one by one."""


def listed(text: str) -> dict[str, list[str]]:
    """Sections of docs/README.md with the pages that they list, as paths in the repository."""
    sections: dict[str, list[str]] = {}
    for heading, body in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", text, re.M):
        links = re.findall(r"^- \[[^\]]*\]\(([^)]+)\)", body, re.M)
        sections[heading] = [re.sub(r"^docs/\.\./", "", f"docs/{link}") for link in links]
    return sections


def pages(root: Path = REPOSITORY) -> Iterator[tuple[str, list[str]]]:
    """Each section that has pages, with their paths below the root."""
    sections = listed((REPOSITORY / "docs/README.md").read_text(encoding="utf-8"))
    named = {path for paths in sections.values() for path in paths}
    for section, listed_paths in sections.items():
        paths = [path for path in listed_paths if (root / path).exists()]
        for pattern in FURTHER.get(section, ()):
            matches = sorted(str(match.relative_to(root)) for match in root.glob(pattern))
            paths += [path for path in matches if path not in named]
        if paths:
            yield section, paths
