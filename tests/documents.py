"""Runs what the documents show and compares it with what they say it prints.

In a document

    a ```console block     is a terminal: after each "$ command" stands all that it prints;
    a ```python block      is a script of its own, and a ```text block right below it its output;
    a ```sh block          is run to its end, and must succeed; its output is not shown;
    <!-- generated: X -->  up to <!-- end --> is made by GENERATED[X];
    ![...](docs/X.svg)     is drawn by PICTURES["docs/X.svg"] from the files that the commands left;
                           of the lecture's pictures the caption is drawn, too.

Everything is compared exactly, except the wall-clock time in `tally run`'s lines of progress. A
block is left out where its fence says so and why: ```sh no-run: needs two machines. All of one
document runs in one empty folder that has the repository's `examples` in it, top to bottom.

    python -m tests.documents --write README.md ARCHITECTURE.md      brings both up to date
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from benchmarks.peer_models import all_peer_models_table, peer_models_table
from benchmarks.peers import peers_table
from benchmarks.published_compiled import table as compiled_table
from benchmarks.published_inference import engines_table
from benchmarks.published_inference import sources as inference_sources
from benchmarks.published_inference import table as inference_table
from benchmarks.published_kernels import document_table as kernels_table
from benchmarks.published_trainings import (
    memory_table,
    ranges_table,
    ranking_table,
    regret_table,
    typed_table,
)
from benchmarks.published_trainings import table as trainings_table
from tests.agents_page import tools_table
from tests.constants_page import constants_count, constants_list
from tests.corpus.score import score_line, score_table
from tests.families_page import counted_families, families_table
from tests.layers import arrows_line, districts_table
from tests.lecture.charts import caption_of
from tests.lecture.exercises_page import answers_table, questions_list
from tests.lecture.pictures import LECTURE_PICTURES
from tests.operators_page import operators_table
from tests.options_page import options_table
from tests.warm import commands, warm
from torchtally.report.formats import render
from torchtally.report.glossary import glossary_markdown
from torchtally.report.report import Look, table_report
from torchtally.report.schema import documents_table, vocabulary_table
from torchtally.table import Table

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = tuple(
    str(path.relative_to(REPOSITORY))
    for folder in (REPOSITORY, REPOSITORY / "docs", REPOSITORY / "docs" / "lecture")
    for path in sorted(folder.glob("*.md"))
) + tuple(
    str(path.relative_to(REPOSITORY))
    for folder in ("src", "tests")
    for path in sorted((REPOSITORY / folder).rglob("README.md"))
)
TIMEOUT_S = 300

BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: no-run: (?P<reason>\S[^\n]*))?\n(?P<text>.*?)^```$\n?", re.M | re.S
)
PICTURE = re.compile(r"^!\[(?P<caption>.*)\]\((?P<path>\S+\.svg)\)", re.M)
REGION = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.S)
ELAPSED = re.compile(r"^(tally: step .*), [\d.]+ (ns|us|ms|s|min)$", re.M)


@dataclass(frozen=True, slots=True)
class Shown:
    """Something a document shows: what was run, and the text that is said to come of it."""

    command: tuple[str, ...]
    output: str
    start: int
    """Where in the document the output stands."""
    is_quiet: bool = False
    """The document does not show what it prints, unless it fails."""

    @property
    def end(self) -> int:
        return self.start + len(self.output)


def shown(document: str) -> Iterator[Shown]:
    """Everything in a document that is run, in order."""
    blocks = list(BLOCK.finditer(document))
    fences = re.findall(r"^```\w.*", document, re.M)
    assert len(fences) == len(blocks), f"not every block is understood: {fences}"
    for number, block in enumerate(blocks):
        if block["reason"]:
            continue
        if block["language"] == "console":
            yield from terminal(block["text"], block.start("text"))
        elif block["language"] == "sh":
            yield Shown(("sh", "-ec", block["text"]), "", block.end(), is_quiet=True)
        elif block["language"] == "python":
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            is_output = after is not None and document[block.end() : after.start()].isspace()
            script = tuple(warm(block["text"]))
            if after is not None and is_output and after["language"] == "text":
                yield Shown(script, after["text"], after.start("text"))
            else:
                yield Shown(script, "", block.end())


def terminal(text: str, start: int) -> Iterator[Shown]:
    """The commands of a console block. Whatever stands before the first one is a mistake."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.M)
    assert not parts[0], f"a console block starts without a command: {parts[0]!r}"
    for command, output in zip(parts[1::2], parts[2::2], strict=True):
        start += len(f"$ {command}\n")
        yield Shown(("sh", "-c", command), output, start)
        start += len(output)


FAILED = "exit status "


def run(command: tuple[str, ...], folder: Path) -> str:
    """All that a command prints, as an 80-column terminal without colours shows it.

    A command that fails has a last line more, with its exit status: a document that means it shows
    that line, too.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )
    return done.stdout + (f"{FAILED}{done.returncode}\n" if done.returncode else "")


def environment(folder: Path) -> dict[str, str]:
    """Of a document's commands: no colours, no calibrations and runs of before, and `tally` starts
    at once.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "CI")}
    places = (str(commands()), os.path.dirname(sys.executable), os.environ["PATH"])
    return kept | {
        "PATH": os.pathsep.join(places),
        "NO_COLOR": "1",
        "TALLY_CALIBRATIONS": str(folder / "calibrations"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def other_torch() -> str:
    """Why documents are not run here: they show the figures of the pinned torch. Else ""."""
    pinned = re.search(r"^torch==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    here = torch.__version__.partition("+")[0]
    return "" if here == pinned[1] else f"the documents show torch {pinned[1]}, here is {here}"


def timeless(text: str) -> str:
    """The text with every wall-clock time the same."""
    return ELAPSED.sub(r"\1, 1.00 s", text)


def brought_up_to_date(document: str, folder: Path) -> str:
    """The document with the output that its commands have now. What still holds stays as it is."""
    document = REGION.sub(
        lambda match: f"{match[1]}{generated(match['name'])}\n{match[3]}", document
    )
    parts, place = [], 0
    for example in shown(document):
        now = run(example.command, folder)
        if example.is_quiet and FAILED not in now:
            now = ""
        parts += [
            document[place : example.start],
            example.output if is_same(example.output, now) else now,
        ]
        place = example.end
    return "".join((*parts, document[place:]))


def is_same(said: str, printed: str) -> bool:
    return timeless(said) == timeless(printed)


def differences(name: str, document: str, folder: Path) -> str:
    """A diff from what a document says to what is so; "" where it holds."""
    now = brought_up_to_date(document, folder)
    return difference(name, document, now) + stale_pictures(document, folder)


def stale_pictures(document: str, folder: Path) -> str:
    """The same of its pictures and their captions alone. Its commands have run in the folder."""
    drawn = pictures(document, folder)
    return difference("captions", document, captioned(document, drawn)) + "".join(
        difference(path.name, path.read_text() if path.exists() else "", svg)
        for path, svg in drawn.items()
    )


def captioned(document: str, drawn: dict[Path, str]) -> str:
    """The document with the captions that the lecture's pictures have now."""
    captions = {
        path.name: caption_of(svg) for path, svg in drawn.items() if path.stem in LECTURE_PICTURES
    }

    def written(match: re.Match[str]) -> str:
        caption = captions.get(Path(match["path"]).name, match["caption"])
        return f"![{caption}]({match['path']})"

    return PICTURE.sub(written, document)


def difference(title: str, old: str, new: str) -> str:
    lines = (text.splitlines(keepends=True) for text in (old, new))
    return "".join(difflib.unified_diff(*lines, f"{title} says", f"{title} should say"))


def furnish(folder: Path) -> Path:
    """A folder for a document's commands: the examples are in it."""
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    return folder


def roofline_picture(folder: Path) -> str:
    """The plot of `tally show run.tally --html` by itself, with the page's style inside it."""
    page = run(("tally", "show", "run.tally", "--html", "-"), folder)
    style, svg = (re.search(rf"<{tag}.*?</{tag}>", page, re.S) for tag in ("style", "svg"))
    assert style is not None, page
    assert svg is not None, page
    head, _, body = svg[0].partition(">")
    paper = '<rect width="100%" height="100%" style="fill: var(--paper)"/>'
    font = "<style>svg { font: 16px system-ui, sans-serif; }</style>"
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style[0]}{font}{paper}{body}\n'


def viewer_picture(folder: Path) -> str:
    """The page about memory of `tally view run.tally`, as Textual draws it."""
    from tests.report.test_viewer import screenshot

    svg = screenshot(str(folder / "run.tally"), "5", size=(100, 30))
    # Its fonts are somewhere on the network; a reader's own will do.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)


def flamegraph_picture(folder: Path) -> str:
    """What `tally export run.tally --to flamegraph` writes."""
    return run(("tally", "export", "run.tally", "--to", "flamegraph", "-o", "-"), folder)


def badge_picture(folder: Path) -> str:
    """What `tally export run.tally --to badge` writes."""
    return run(("tally", "export", "run.tally", "--to", "badge", "-o", "-"), folder)


def front_picture(folder: Path) -> str:
    return (folder / "front.svg").read_text()


def exponents_picture(folder: Path) -> str:
    """What `tally dtypes --svg` has written."""
    return (folder / "exponents.svg").read_text(encoding="utf-8")


PICTURES: dict[str, Callable[[Path], str]] = {
    "docs/badge.svg": badge_picture,
    "docs/flamegraph.svg": flamegraph_picture,
    "docs/number_formats_exponents.svg": exponents_picture,
    "docs/roofline.svg": roofline_picture,
    "docs/tune_front.svg": front_picture,
    "docs/viewer.svg": viewer_picture,
    **{f"docs/lecture/pictures/{name}.svg": draw for name, draw in LECTURE_PICTURES.items()},
}
"""By their places in the repository. No two have the same file name."""


def pictures(document: str, folder: Path) -> dict[Path, str]:
    """The pictures of a document as they are now. Its commands have run in the folder."""
    places = {Path(place).name: place for place in PICTURES}
    return {
        REPOSITORY / place: PICTURES[place](folder)
        for match in PICTURE.finditer(document)
        for place in [places[Path(match["path"]).name]]
    }


def in_markdown(table: Table) -> str:
    """A table without its title."""
    return render(table_report(table), "markdown", Look()).partition("\n\n")[2].partition("\n\n")[2]


GENERATED: dict[str, Callable[[], str]] = {
    "districts": districts_table,
    "arrows": arrows_line,
    "peers": peers_table,
    "peer_models": peer_models_table,
    "all_peer_models": all_peer_models_table,
    "score": score_line,
    "corpus": score_table,
    "operators": operators_table,
    "families": families_table,
    "tools": tools_table,
    "counted": counted_families,
    "trainings": trainings_table,
    "typed": typed_table,
    "training_memory": memory_table,
    "training_ranges": ranges_table,
    "training_ranking": ranking_table,
    "training_regret": regret_table,
    "compiled": compiled_table,
    "kernels": kernels_table,
    "inference": inference_table,
    "inference_sources": inference_sources,
    "engines": engines_table,
    "options": options_table,
    "constants": constants_list,
    "constants_count": constants_count,
    "glossary": glossary_markdown,
    "exercises": questions_list,
    "answers": answers_table,
    "documents": lambda: in_markdown(documents_table()),
    "vocabulary": lambda: in_markdown(vocabulary_table()),
}


@cache
def generated(name: str) -> str:
    """A part of a document, made once: it depends on the source alone."""
    return GENERATED[name]()


def main() -> None:
    """Bring the documents named on the command line up to date, all without a name."""
    names = [argument for argument in sys.argv[1:] if argument != "--write"] or DOCUMENTS
    assert "--write" in sys.argv, __doc__
    for name in names:
        path = REPOSITORY / name
        with tempfile.TemporaryDirectory() as folder:
            now = brought_up_to_date(path.read_text(encoding="utf-8"), furnish(Path(folder)))
            drawn = pictures(now, Path(folder))
        if now.count(FAILED) > path.read_text(encoding="utf-8").count(FAILED):
            raise SystemExit(f"{name} is as it was, since a command of it fails now:\n{now}")
        path.write_text(captioned(now, drawn), encoding="utf-8")
        for picture, svg in drawn.items():
            picture.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
