"""The code of a Jupyter notebook: its cells, without what only IPython understands."""

import json
import re
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torchtally.errors import ScriptError
from torchtally.tracer.script_file import read_script
from torchtally.tracer.shell_lines import assigned_output
from torchtally.tracer.texts import compile_text

MAGICS = ("%", "!", "?")
"""What a line of IPython's own begins with."""
TRANSPARENT = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Magics of a whole cell whose other lines are Python."""


def cells(path: str) -> Iterator[CodeType]:
    """The code cells in order, compiled as "cell 1", "cell 2", ...; says what it leaves out.

    Raises ScriptError for a file that is not a notebook, SyntaxError as Python does.
    """
    for number, source in enumerate(sources(path), start=1):
        code = code_of(source, f"cell {number}")
        if code is not None:
            yield code


def sources(path: str) -> list[str]:
    try:
        notebook = json.loads(read_script(path))
        return ["".join(cell["source"]) for cell in cells_in(notebook)]
    except (ValueError, KeyError, TypeError) as error:
        raise ScriptError(
            f"{path}: not a Jupyter notebook of format 4 ({error}).\n"
            "Save it by Jupyter, or convert it: jupyter nbconvert --to script."
        ) from error


def cells_in(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def code_of(source: str, name: str) -> CodeType | None:
    """A cell's code; None where the cell is another language's."""
    lines = source.splitlines()
    first = next((at for at, line in enumerate(lines) if line.strip()), None)
    if first is not None and lines[first].startswith("%%"):
        if not lines[first].startswith(TRANSPARENT):
            say_left_out(name, first, f"{lines[first]} and the rest of the cell")
            return None
        leave_out(lines, first, name)
    while True:
        try:
            return compile_text("\n".join(lines) + "\n", name)
        except SyntaxError as error:
            # One after the other: a line that begins with % may belong to an expression.
            at = (error.lineno or 0) - 1
            if not 0 <= at < len(lines):
                raise
            output = assigned_output(lines[at])
            if output is not None:
                lines[at] = output
            elif is_of_ipython(lines[at]):
                leave_out(lines, at, name)
            else:
                raise


HELP = re.compile(r"\s*\?{0,2}%{0,2}[\w.*]+(\[\d+\])?\?{1,2}\s*")
"""A question for help: `torch.nn?`, `x??`."""


def is_of_ipython(line: str) -> bool:
    """Whether a line is no Python but a magic, a shell's command or a question for help."""
    return line.lstrip().startswith(MAGICS) or HELP.fullmatch(line) is not None


def leave_out(lines: list[str], at: int, name: str) -> None:
    """Put `pass` in the place of a line of IPython's, and of those that continue it."""
    line = lines[at]
    say_left_out(name, at, line.strip())
    lines[at] = line[: len(line) - len(line.lstrip())] + "pass"
    while line.endswith("\\") and at + 1 < len(lines):
        at += 1
        line, lines[at] = lines[at], ""


def say_left_out(name: str, at: int, what: str) -> None:
    message = f"tally: note: {name}, line {at + 1} was left out, since only IPython runs it: {what}"
    print(message, file=sys.stderr, flush=True)
