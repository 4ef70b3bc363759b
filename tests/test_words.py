"""Messages, help and notes are in the field's own English, so that users can search for them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchtally
from tests.layers import nodes, parsed

PACKAGE = Path(torchtally.__file__).parent

DIALECT = {
    r"(?<!there )(?<!There )\b(is|are) no\b(?! (longer|more|larger|such)\b)": "is not a",
    r"\b(is|are) none of\b": "is not one of",
    r"\b(names|holds) no\b": "does not name, contains no",
    r"\b(no|some|any)body\b": "unknown; published",
    r"\b(made|done|computed) again\b": "recomputed",
    r"\b(is|are) taken (to|for)\b": "is assumed to",
    r"\bone behind the other\b|\bgoes? behind\b": "one after the other; goes after",
    r"\bone's own\b": "your own",
    r"\bheld against\b": "compared with",
    r"\bnothing hides\b": "exposed",
    r"\b(is|are) said\b": "is reported",
    r"\bwhose (it|they) (is|are)\b": "that owns it",
    r"\bat hand\b": "this machine's",
    r", for one\b": "for example",
    r"\bby (a run|runs) of (its|their) own\b": "in its own run",
    r"\bno number\b": "NaN; not a number",
    r"^[Ww]hich \w+\?": "missing ...: give ...",
    r"\bexpected a text\b": "expected a string",
}
"""What messages do not say, and what they say instead."""


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every string of several words that is no docstring."""
    docstrings = {
        id(statement.value)
        for node in nodes(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_message = " " in node.value and id(node) not in docstrings
            yield from [(node.lineno, node.value)] * is_message


def dialect(source: str) -> list[str]:
    """'7: "is no": say "is not a"' for each phrase of `DIALECT` in a module's messages."""
    return [
        f'{line}: "{match[0]}": say "{instead}"'
        for line, text in messages(parsed(source))
        for phrase, instead in DIALECT.items()
        if (match := re.search(phrase, text))
    ]


def test_messages_are_plain_english() -> None:
    places = [
        f"{path.relative_to(PACKAGE)}:{phrase}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for phrase in dialect(path.read_text(encoding="utf-8"))
    ]
    assert places == []


@pytest.mark.parametrize(
    "text",
    [
        "a loss that is no number",
        "3000000 layers are no model's",
        "the module whose they are",
        "full: all layers made again",
        "of which nobody knows the price",
        "FSDP is none of DDP, ZeRO",
        "--price names no chip",
        "which script? Give one",
        "experts are taken to be balanced",
        "add --by line, for one",
        "communication that nothing hides",
    ],
)
def test_a_phrase_of_dialect_is_found(text: str) -> None:
    assert len(dialect(f"raise UsageError({text!r})")) >= 1
    assert len(dialect(f'def f():\n    """{text}"""')) == 0


@pytest.mark.parametrize(
    "text",
    ["NaN loss", "there is no such file", "it is no longer there", "expected a string, found 7"],
)
def test_plain_english_is_no_dialect(text: str) -> None:
    assert dialect(f"raise UsageError({text!r})") == []


PREPOSITION = re.compile(
    r"[*`]*(about|above|across|after|against|along|among|around|as|at|before|behind|below|beneath|"
    r"besides?|between|beyond|by|despite|down|during|except|for|from|in|inside|into|like|near|of|off|"
    r"on|onto|out|outside|over|past|per|since|through|throughout|to|towards?|under|until|up|upon|via|"
    r"where|whose|with|within|without)(?=[\s,:])",
    re.I,
)


def begins_with_a_preposition(source: str) -> list[str]:
    """'7: "Of a generator"' for each docstring that does not stand alone in `help()`."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in nodes(parsed(source)):
        docstring = ast.get_docstring(node) if isinstance(node, described) else None
        if docstring and PREPOSITION.match(docstring):
            found.append(f'{getattr(node, "lineno", 1)}: "{docstring[:20]}"')
    return found


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    assert [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in begins_with_a_preposition(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize("docstring", ["Of a device, 16 bytes.", "Within, torch is as it was."])
def test_a_docstring_that_begins_with_a_preposition_is_found(docstring: str) -> None:
    function = f'def f():\n    """{docstring}"""\n'
    assert len(begins_with_a_preposition(function)) == 1
    assert (
        begins_with_a_preposition(
            function.replace("Of a", "State of a").replace(
                "Within, torch", "Context in which torch"
            )
        )
        == []
    )
