"""Runs what the documents show and compares it with what they say it prints.

In a document

    a ```console block     is a terminal: after each "$ command" stands all that it prints;
    a ```python block      is a script of its own, and a ```text block right below it its output;
    <!-- generated: X -->  up to <!-- end --> is made by GENERATED[X].

Everything is compared exactly, but for the wall-clock time in `tally run`'s lines of progress.
Blocks in other languages (`sh`: installing, say) are not run. All of one document runs in one empty
folder that has the repository's `examples` in it, top to bottom.

    python -m tests.documents --write README.md ARCHITECTURE.md      brings both up to date
"""

import ast
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.layers import layers_table

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
TIMEOUT_S = 300

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$\n?", re.M | re.S)
REGION = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.S)
ELAPSED = re.compile(r"^(tally: step .*), [\d.]+ (ns|us|ms|s|min)$", re.M)


@dataclass(frozen=True, slots=True)
class Shown:
    """Something a document shows: what was run, and the text that is said to come of it."""

    command: tuple[str, ...]
    output: str
    start: int
    """Where in the document the output stands."""

    @property
    def end(self) -> int:
        return self.start + len(self.output)


def shown(document: str) -> Iterator[Shown]:
    """Everything in a document that can be run, in order."""
    blocks = list(BLOCK.finditer(document))
    for number, block in enumerate(blocks):
        if block["language"] == "console":
            yield from terminal(block["text"], block.start("text"))
        elif block["language"] == "python":
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            is_output = after is not None and document[block.end() : after.start()].isspace()
            script = (sys.executable, "-c", block["text"])
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
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "CI")
    }
    environment["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )
    return done.stdout + (f"{FAILED}{done.returncode}\n" if done.returncode else "")


def timeless(text: str) -> str:
    """The text with every wall-clock time the same."""
    return ELAPSED.sub(r"\1, 1.00 s", text)


def brought_up_to_date(document: str, folder: Path) -> str:
    """The document with the output that its commands have now. What still holds stays as it is."""
    document = REGION.sub(
        lambda match: f"{match[1]}{GENERATED[match['name']]()}\n{match[3]}", document
    )
    parts, place = [], 0
    for example in shown(document):
        now = run(example.command, folder)
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
    lines = (text.splitlines(keepends=True) for text in (document, now))
    return "".join(difflib.unified_diff(*lines, f"{name} says", f"{name} should say"))


def furnish(folder: Path) -> Path:
    """A folder for a document's commands: the examples are in it."""
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    return folder


def file_map() -> str:
    """Every file of the package, with the first line of its docstring."""
    root = REPOSITORY / "src" / "torchtally"
    files = sorted(
        (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts),
        key=lambda path: (len(path.relative_to(root).parts) > 1, path.relative_to(root).parts),
    )
    rows = [
        (str(file.relative_to(root)), first_line(file))
        for file in files
        if file.parent.name != MEASURED
    ]
    rows.append((f"chips/{MEASURED}/*.json", "Measured devices: what `tally bench` wrote."))
    width = max(len(name) for name, _ in rows)
    return "\n".join(("```text", *(f"{name:{width}}  {line}" for name, line in rows), "```"))


MEASURED = "calibrations"
"""A folder of data, a file for each device."""

WITHOUT_DOCSTRING = {
    "chips.toml": "The chips: every number with its source.",
    "known_models.toml": "The models known by name: sizes, published counts, sources.",
    "config_defaults.toml": "What a config.json leaves out, by its model's class.",
    "py.typed": "Says to type checkers that the package is typed.",
}


def first_line(file: Path) -> str:
    if file.name in WITHOUT_DOCSTRING:
        return WITHOUT_DOCSTRING[file.name]
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert docstring, f"{file} has no docstring, so the map has nothing to say of it"
    return docstring.splitlines()[0]


GENERATED: dict[str, Callable[[], str]] = {"layers": layers_table, "files": file_map}


def main() -> None:
    """Bring the documents named on the command line up to date, all without a name."""
    names = [argument for argument in sys.argv[1:] if argument != "--write"] or DOCUMENTS
    assert "--write" in sys.argv, __doc__
    for name in names:
        path = REPOSITORY / name
        with tempfile.TemporaryDirectory() as folder:
            now = brought_up_to_date(path.read_text(encoding="utf-8"), furnish(Path(folder)))
        if now.count(FAILED) > path.read_text(encoding="utf-8").count(FAILED):
            raise SystemExit(f"{name} is as it was, since a command of it fails now:\n{now}")
        path.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    main()
