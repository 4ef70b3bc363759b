"""The words of all documents: what each key means, and its unit, from vocabulary.toml."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchtally.units import Unit

FILE = Path(__file__).with_name("vocabulary.toml")

TEXT, TRUTH, SIZES, NAMES, MIXED, PART = "text", "truth", "sizes", "names", "mixed", "part"
"""Kinds beside the units of numbers: a text; true or false; whole numbers in a list; texts in a
list; a number or a text; an object or a list with keys of its own."""
KINDS = (TEXT, TRUTH, SIZES, NAMES, MIXED, PART)

FREE = "figure_"
"""What a column begins with whose name is a figure's own (`tally plan --compare`)."""


@dataclass(frozen=True, slots=True)
class Term:
    """A key of documents."""

    name: str
    unit: str
    """A `Unit` of numbers, or one of `KINDS`."""
    meaning: str

    @property
    def is_part(self) -> bool:
        return self.unit == PART


def terms() -> Iterator[Term]:
    """Every key, by unit as in the file."""
    sections = tomllib.loads(FILE.read_text(encoding="utf-8"))
    for unit, words in sections.items():
        assert unit in KINDS or not Unit(unit).is_text, unit
        for name, meaning in words.items():
            yield Term(name, unit, meaning)


@cache
def vocabulary() -> Mapping[str, Term]:
    """Terms by name. A name that stands twice is a mistake of the file."""
    words: dict[str, Term] = {}
    for term in terms():
        assert term.name not in words, f"{term.name} stands twice in {FILE.name}"
        words[term.name] = term
    return words


ALIKE = (
    {Unit.COUNT, Unit.PARAMETERS, Unit.TOKENS, Unit.CHIPS, Unit.STEPS},
    {Unit.TOKEN_PER_S, Unit.COUNT},
    {Unit.USD, Unit.USD_PER_HOUR},
    {Unit.NUMBER, Unit.TIMES, Unit.VALUE},
)
"""Units of which a column may have any: they differ in how a renderer writes them."""
IN_TABLES = {TRUTH, SIZES, NAMES, MIXED}
"""Kinds whose cells a table spells as texts."""


def agrees(unit: Unit, term: Term) -> bool:
    """Whether a column with this unit is what the vocabulary says."""
    if unit is Unit.LINE:
        return term.name == "line"
    if unit.is_text:
        return term.unit == TEXT or term.unit in IN_TABLES
    is_alike = any(unit in units and term.unit in units for units in ALIKE)
    return unit == term.unit or is_alike or (term.unit == MIXED)
