"""Builds the site: `python -m tests.site [FOLDER]` (default build/site). A warning is an error."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.documents import REPOSITORY
from tests.site.check import mistakes
from tests.site.contents import pages
from tests.site.llms import write_llms
from tests.site.sources import write_sources

SETTINGS = {
    "site_name": "torchtally",
    "site_description": "What every line of a training step costs, before the GPU is paid for",
    "docs_dir": "source",
    "site_dir": "html",
    # A page is opened from a disk, too, where a folder's address shows the folder.
    "use_directory_urls": False,
    "theme": {
        "name": "material",
        "font": False,  # the reader's own: no request
        "features": [
            "content.code.copy", "navigation.footer", "navigation.sections", "navigation.top",
            "navigation.tracking", "search.highlight", "toc.follow",
        ],
        "palette": [
            {"media": "(prefers-color-scheme)",
             "toggle": {"icon": "lucide/sun-moon", "name": "Light"}},
            {"media": "(prefers-color-scheme: light)", "scheme": "default",
             "toggle": {"icon": "lucide/sun", "name": "Dark"}},
            {"media": "(prefers-color-scheme: dark)", "scheme": "slate",
             "toggle": {"icon": "lucide/moon", "name": "As the system"}},
        ],
    },
    "plugins": ["search", "offline"],
    "markdown_extensions": [
        "admonition", "attr_list", "md_in_html", "tables", {"toc": {"permalink": True}},
        "pymdownx.highlight", "pymdownx.superfences",
    ],
}  # fmt: skip

SHIM = re.compile(r'<script src="https://unpkg.com/iframe-worker/shim"[^>]*></script>')
"""What zensical loads from a network, for pages on a disk."""
WORKER = """\
if (location.protocol === "file:") {
  const source = %s;
  const Base = window.Worker;
  window.Worker = class extends Base {
    constructor() { super(URL.createObjectURL(new Blob([source], { type: "text/javascript" }))); }
  };
}
"""


def build(folder: Path) -> list[str]:
    """Write the site to FOLDER/html; what is wrong with it."""
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder / "source")
    nav = [{section: paths} for section, paths in pages(folder / "source")]
    # JSON is YAML.
    (folder / "mkdocs.yml").write_text(json.dumps(SETTINGS | {"nav": nav}, indent=1))
    zensical = (sys.executable, "-m", "zensical", "build", "--clean", "--strict")
    done = subprocess.run(
        (*zensical, "--config-file", "mkdocs.yml"), cwd=folder, env=os.environ | {"NO_COLOR": "1"}
    )
    without_network(folder / "html")
    wrong = ["zensical has warnings"] if done.returncode else []
    return [*wrong, *write_llms(folder / "html"), *mistakes(folder / "html")]


def without_network(site: Path) -> None:
    """Let search work from a disk, where browsers refuse a worker's file; drop page 404."""
    (site / "404.html").unlink(missing_ok=True)
    (worker,) = site.glob("assets/javascripts/workers/search*.js")
    shim = WORKER % json.dumps(worker.read_text(encoding="utf-8"))
    (site / "assets/javascripts/worker.js").write_text(shim, encoding="utf-8")
    for path in site.rglob("*.html"):
        up = "../" * (len(path.relative_to(site).parts) - 1)
        ours = f'<script src="{up}assets/javascripts/worker.js"></script>'
        html = path.read_text(encoding="utf-8")
        path.write_text(SHIM.sub(ours, html), encoding="utf-8")


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "build/site"
    wrong = build(folder)
    print("\n".join(wrong) or f"{folder}/html/index.html")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
