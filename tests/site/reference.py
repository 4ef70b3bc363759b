"""Pages that are printed: commands by --help, Python by docstrings, documents by schemas."""

import argparse
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from unittest import mock

import griffe

import torchtally
from tests.documents import in_markdown
from tests.layers import arrows_line, layers_table
from torchtally.cli import COMMANDS, parser
from torchtally.report.documents import documents
from torchtally.report.schema import fields_table, schema_text, version


def reference() -> Iterator[tuple[str, str]]:
    """Each page's path below docs/reference, and its text."""
    for name in COMMANDS:
        yield f"commands/{name}.md", command_page(name)
    for name in documents():
        yield f"documents/{name}.md", document_page(name)
    yield "python.md", python_page()
    yield "rooms.md", rooms_page()


def command_page(name: str) -> str:
    """What `tally NAME --help` prints in 80 columns, and what each of its own commands prints."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}):
        helps = "\n".join(
            f"## {command.prog}\n\n{fenced('text', command.format_help())}"
            for command in commands_of(parser([name]))
        )
    return f"# tally {name}\n\n{helps.partition(chr(10) * 2)[2]}"


def commands_of(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands below a parser."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield command
                yield from commands_of(command)


def document_page(name: str) -> str:
    """The keys of a document in words, and its JSON Schema."""
    schema = json.dumps(json.loads(schema_text(name)), indent=1, ensure_ascii=False)
    return (
        f"# Document {name}\n\nVersion {version(name)}; `tally schema {name}` prints its "
        f"JSON Schema.\n\n{in_markdown(fields_table(name))}\n\n## JSON Schema\n\n"
        f"{fenced('json', schema)}"
    )


def rooms_page() -> str:
    """Which room may import which."""
    return f"# Rooms, and what they may import\n\n{arrows_line()}\n\n{layers_table()}"


def python_page() -> str:
    """Every public name with its signature and docstring, as the source has them."""
    package = griffe.load("torchtally", resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    names = sorted(torchtally.__all__, key=str.lower)
    entries = "\n".join(entry(public(package, name), f"torchtally.{name}") for name in names)
    return f"# Python\n\nWhat `import torchtally` offers, by name.\n\n{entries}"


def public(package: griffe.Module, name: str) -> griffe.Object | griffe.Alias:
    """What a public name means, also where a module has the same name (`chips.chip`)."""
    of = package[name]
    if not of.is_module:
        return of
    home = getattr(torchtally, name)
    return package[f"{home.__module__}.{home.__qualname__}".removeprefix("torchtally.")]


def entry(of: griffe.Object | griffe.Alias, title: str, level: int = 2) -> str:
    """A function; or a class with its public methods and attributes that have docstrings."""
    parts = [f"{'#' * level} {title}", signature(of), prose(of)]
    if of.is_class:
        members = [
            member
            for member in of.all_members.values()
            if not member.name.startswith("_") and member.docstring and not member.is_class
        ]
        attributes = [member for member in members if member.is_attribute]
        parts += ["\n".join(f"- `{one.name}`: {in_one_line(one)}" for one in attributes)]
        parts += [
            entry(member, f"{of.name}.{member.name}", level + 1)
            for member in members
            if member.is_function
        ]
    return "\n".join(f"{part}\n" for part in parts if part)


def signature(of: griffe.Object | griffe.Alias) -> str:
    """As the formatter lays it out; "" for a class without a constructor of its own."""
    function = of.all_members.get("__init__") if of.is_class else of
    if function is None or not function.is_function:
        return ""
    text = function.signature(name=of.name, return_type=of.is_function)
    source = formatted(f"def {text}: ...")
    return fenced("python", source.removeprefix("def ").removesuffix(": ..."))


def formatted(source: str) -> str:
    ruff = (sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=88", "-")
    done = subprocess.run(ruff, input=source, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def prose(of: griffe.Object | griffe.Alias) -> str:
    """Its docstring, which is Markdown, and the module's where it says that this says more."""
    own = of.docstring.value if of.docstring else ""
    more = of.module.docstring.value if "module's text" in own and of.module.docstring else ""
    return f"{own}\n\n{more}".strip()


def in_one_line(of: griffe.Object | griffe.Alias) -> str:
    return " ".join(prose(of).split())


def fenced(language: str, text: str) -> str:
    """A block of code; the fence is longer than any in the text."""
    fence = "`" * 3
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{textwrap.dedent(text).rstrip()}\n{fence}\n"
