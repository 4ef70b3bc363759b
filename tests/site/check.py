"""What must hold of a built site: links and anchors lead somewhere, a network gives nothing."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "srcset", "link": "href", "iframe": "src"}
"""Elements whose address a browser fetches by itself."""


class Page(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        if LOADED.get(tag) in of and of.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(of[LOADED[tag]])


def mistakes(site: Path) -> Iterator[str]:
    """One line for each link or file that a reader without a network misses."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.loaded:
            if is_elsewhere(address):
                yield f"{name} loads {address} from a network"
        for address in (*page.links, *page.loaded):
            if not is_elsewhere(address) and not leads(address, path, pages):
                yield f"{name} links to {address}, which does not exist"
    for path in site.rglob("*.css"):
        for address in path.read_text(encoding="utf-8").split("url(")[1:]:
            if is_elsewhere(address.strip("'\"")):
                yield f"{path.relative_to(site)} loads {address[:60]} from a network"


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") or bool(parts.netloc)


def leads(address: str, path: Path, pages: dict[Path, Page]) -> bool:
    """Whether a file is there, and the anchor in it."""
    parts = urlsplit(address)
    if parts.scheme:  # mailto:, data:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    return (
        not parts.fragment
        or target not in pages
        or unquote(parts.fragment) in pages[target].anchors
    )
