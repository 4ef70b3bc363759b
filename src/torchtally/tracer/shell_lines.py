"""A shell command whose output a notebook's cell keeps: `files = !ls {folder}`."""

import re
import subprocess
from collections.abc import Mapping
from typing import Any

ASSIGNED = re.compile(r"(?P<names>\s*[\w.,\[\]'\" ]+=\s*)!(?!=)(?P<command>.*)", re.DOTALL)
EXPANDED = re.compile(r"\$\$|\$(?P<name>[A-Za-z_]\w*)|\{\{|\}\}|\{(?P<expression>[^{}]+)\}")


def assigned_output(line: str) -> str | None:
    """The same line as Python; None where it is no such assignment."""
    match = ASSIGNED.fullmatch(line)
    if match is None:
        return None
    called = f'__import__("{__name__}", fromlist=["output_of"]).output_of'
    return f"{match['names']}{called}({match['command'].strip()!r}, {{**globals(), **locals()}})"


def output_of(command: str, names: Mapping[str, Any]) -> list[str]:
    """The lines that a command prints, in a shell, with the cell's names put in.

    As IPython returns them where it is installed: its `SList`, a list with `.n` and `.grep()`.
    """
    done = subprocess.run(
        expanded(command, names), shell=True, text=True, errors="replace", check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    try:
        from IPython.utils.text import SList
    except ImportError:
        return lines
    return SList(lines)


def expanded(command: str, names: Mapping[str, Any]) -> str:
    """The command with `$name` and `{expression}` replaced, as IPython does; a name that is not
    there is the shell's own.
    """

    def value(match: re.Match[str]) -> str:
        text = match[0]
        if text in ("$$", "{{", "}}"):
            return text[0]
        if match["name"]:
            return str(names[match["name"]]) if match["name"] in names else text
        try:
            return str(eval(f"f{match[0]!r}", dict(names)))  # with its format
        except Exception:  # braces of the shell's: ${HOME}, {1..3}
            return text

    return EXPANDED.sub(value, command)
