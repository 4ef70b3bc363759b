"""The lecture's pages as notebooks: their blocks are cells, their output is what cells show.

The site has one beside each page. The tests execute them, and compare what they print with the
page, so that a page and its notebook hold together.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat.v4 as cell_of

from tests.documents import BLOCK, shown
from torchtally.integrations.lecture import EXERCISES
from torchtally.integrations.lecture.check import verdict

FOLDER = Path(__file__).parents[2] / "docs" / "lecture"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
PICTURE = re.compile(r"(?<=\]\()pictures/(?P<name>\w+\.svg)(?=\))")


def notebook(page: Path) -> Any:
    """The page's text and blocks in order, a cell for each command; unexecuted, with its output."""
    document = page.read_text(encoding="utf-8")
    cells, place = [], 0
    for block in BLOCK.finditer(document):
        cells += text_cells(document[place : block.start()])
        if block["language"] == "text":
            cells[-1].outputs = [printed(block["text"])]
        else:
            cells += code_cells(block)
        place = block.end()
    cells += text_cells(document[place:])
    cells += exercise_cells(int(page.name[:2]))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # else random
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return cell_of.new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )


def exercise_cells(page: int) -> Iterator[Any]:
    """Three answers to write, the third about the student's own script."""
    yield cell_of.new_markdown_cell(
        "## Three to write\n\nWrite a number in place of `None`, and run the cell. It is compared "
        "here, and nothing is stored or sent. [Answers](answers.html)."
    )
    for exercise in (each for each in EXERCISES.values() if each.page == page):
        yield cell_of.new_markdown_cell(f"**{exercise.number}.** {exercise.question}")
        if exercise.is_own:
            yield cell_of.new_code_cell(OWN_SCRIPT)
        cell = cell_of.new_code_cell(answer_source(exercise.number, "None"))
        cell.outputs = [printed(verdict(exercise, None, "mine.tally") + "\n")]
        yield cell


OWN_SCRIPT = """\
%%sh
# Your own script, with its options, in place of train.py:
if [ -e train.py ]; then tally run train.py --gpu H100-SXM --quiet -o mine.tally; fi"""


def answer_source(number: str, answer: str) -> str:
    """The cell in which an answer is written."""
    return (
        "from torchtally.integrations.lecture import check\n\n"
        f"answer = {answer}  # {EXERCISES[number].unit}\n"
        f'check("{number}", answer)'
    )


def text_cells(text: str) -> Iterator[Any]:
    """A cell of Markdown with its pictures in it; none for blank lines alone."""
    text = re.sub(r"<details.*>\n<summary>Exercise: (.*)</summary>", r"**Exercise:** \1", text)
    text = text.replace("</details>", "")
    text = re.sub(r'<a id="[^"]*"></a>', "", text).strip()
    if text:
        names = [match["name"] for match in PICTURE.finditer(text)]
        cell = cell_of.new_markdown_cell(linked(PICTURE.sub(r"attachment:\g<name>", text)))
        if names:
            cell.attachments = {name: {"image/svg+xml": encoded(name)} for name in names}
        yield cell


def linked(text: str) -> str:
    """Links to the lecture's pages lead to their notebooks, others to the site's pages."""
    text = re.sub(r"(?<=\]\()(\d\d_\w+)\.md", r"\1.ipynb", text)
    return re.sub(r"(?<=\]\()([\w/.]+)\.md", r"\1.html", text)


def encoded(name: str) -> str:
    return base64.b64encode((FOLDER / "pictures" / name).read_bytes()).decode()


def code_cells(block: re.Match[str]) -> Iterator[Any]:
    """One for a script, one for each command of a terminal."""
    if block["language"] == "console":
        for example in shown(block[0]):
            cell = cell_of.new_code_cell(f"%%sh\n{example.command[-1]}")
            cell.outputs = [printed(example.output)] if example.output else []
            yield cell
    elif block["language"] == "sh":
        yield cell_of.new_code_cell(f"%%sh\n{block['text'].strip()}")
    else:
        assert block["language"] == "python", block[0]
        yield cell_of.new_code_cell(block["text"].strip())


def printed(text: str) -> Any:
    return cell_of.new_output("stream", name="stdout", text=text)
