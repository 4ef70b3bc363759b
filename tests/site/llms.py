"""llms.txt at the root of the site: its pages with a line on each, for programs that read it
(https://llmstxt.org), and the skill beside it as it is.
"""

import re
import shutil
from pathlib import Path

from tests.documents import REPOSITORY

HEAD = """\
# torchtally

> Runs an unmodified PyTorch training script on a simulated GPU, and reports what every line,
> module and operator of a training step costs: memory, FLOPs, time, money. No GPU is needed.
> `tally run --brief train.py` answers in twelve lines, `tally mcp` serves the same as tools;
> docs/agents.html is the contract for programs, SKILL.md a skill.
"""
SKILL = "docs/SKILL.md"


def llms_text(contents: str) -> str:
    """The text, of docs/README.md: its sections and links, as addresses of the site's pages."""
    body = contents.partition("\n## ")[2]
    linked = re.sub(r"\]\(([^)#:]+)\.md(#[^)]*)?\)", address, f"## {body}")
    return f"{HEAD}\n{linked.strip()}\n"


def address(match: re.Match[str]) -> str:
    """A link of a document below docs/ as the site's address."""
    path = re.sub(r"^docs/\.\./", "", f"docs/{match[1]}")
    page = re.sub(r"(^|/)README$", r"\1index", path)  # a folder's page is its index
    return f"]({page}.html{match[2] or ''})"


def missing_pages(text: str, site: Path) -> list[str]:
    """What is wrong with a text: pages that it names and the site does not have."""
    pages = re.findall(r"\]\(([^):#]+\.html)", text)
    return [f"llms.txt links to {page}" for page in pages if not (site / page).exists()]


def write_llms(site: Path) -> list[str]:
    """Write llms.txt and SKILL.md to the root of a built site; what is wrong with them."""
    contents = (REPOSITORY / "docs/README.md").read_text(encoding="utf-8")
    text = llms_text(contents)
    (site / "llms.txt").write_text(text, encoding="utf-8")
    shutil.copyfile(REPOSITORY / SKILL, site / "SKILL.md")
    return missing_pages(text, site)
