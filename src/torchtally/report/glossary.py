"""The terms of reports: what each means, from glossary.toml."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from torchtally.errors import UsageError, did_you_mean
from torchtally.report.grid import INDENT, wrap
from torchtally.report.report import Look, Report, table_report
from torchtally.table import Column, Table
from torchtally.units import Unit

FILE = Path(__file__).with_name("glossary.toml")


@cache
def subjects() -> Mapping[str, Mapping[str, str]]:
    """Each subject's terms with their meanings, as the file has them."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def glossary() -> Mapping[str, str]:
    """The meaning of each term. One that stands twice is a mistake of the file."""
    terms = [pair for terms in subjects().values() for pair in terms.items()]
    assert len(dict(terms)) == len(terms), f"a term stands twice in {FILE.name}"
    return dict(terms)


def terms_in(texts: Iterable[str]) -> Iterator[str]:
    """The terms that occur as words of the texts, in the glossary's order."""
    text = "\n".join(texts)
    for term in glossary():
        if re.search(rf"(?<!\w){re.escape(term)}(?![\w/])", text, re.I if term.islower() else 0):
            yield term


def glossary_report(names: Iterable[str] = ()) -> Report:
    """All terms, or those named in any case. Raises UsageError for one that is not there."""
    table = glossary_table(names)
    return replace(table_report(table), text=partial(_glossary_text, table))


def glossary_table(names: Iterable[str] = ()) -> Table:
    chosen = [_term(name) for name in names] or list(glossary())
    return Table(
        title="Terms",
        columns=(Column("name", "term", Unit.NAME), Column("meaning", "meaning", Unit.TEXT)),
        rows=tuple((term, glossary()[term]) for term in chosen),
    )


def _term(name: str) -> str:
    terms = {term.lower(): term for term in glossary()}
    if name.lower() not in terms:
        raise UsageError(f"{name}: not in the glossary. {did_you_mean(name.lower(), terms)}")
    return terms[name.lower()]


def _glossary_text(table: Table, look: Look) -> str:
    """Paragraphs, which a table would cut."""
    lines = []
    for term, meaning in table.rows:
        first, *rest = wrap(f"{term}: {meaning}.", look.width - len(INDENT))
        lines += [first.removeprefix(INDENT), *rest]
    return "".join(f"{line}\n" for line in lines)


def glossary_markdown() -> str:
    """The subjects as headings, a list of terms below each."""
    return "\n\n".join(
        "\n".join(
            (
                f"## {subject.capitalize()}\n",
                *(f"- **{term}**: {meaning}." for term, meaning in terms.items()),
            )
        )
        for subject, terms in subjects().items()
    )
